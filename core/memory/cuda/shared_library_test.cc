#include "core/memory/cuda/shared_library.h"

#include <cmath>
#include <cstdlib>

#include "gmock/gmock.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr char kVariable[] = "PELTON_TEST_LIBRARY";

TEST(SharedLibraryTest, FindsTheOneThatIsInTheProcess) {
  auto library = SharedLibrary::Find({"", {"libnowhere.so.9", "libc.so.6"}, kVariable});
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_THAT(library->path(), HasSubstr("libc.so.6"));
  EXPECT_NE(library->Symbol("getpid"), nullptr);
  EXPECT_EQ(library->Symbol("no_such_function"), nullptr);
}

TEST(SharedLibraryTest, APathGoesBeforeAllElse) {
  const auto status = SharedLibrary::Find({"/nowhere/liba.so", {"libc.so.6"}, kVariable}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/liba.so"));
}

TEST(SharedLibraryTest, AVariableThatNamesNothingIsAnError) {
  setenv(kVariable, "/nowhere/libb.so", 1);
  const auto status = SharedLibrary::Find({"", {"libnowhere.so.9"}, kVariable}).status();
  unsetenv(kVariable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("PELTON_TEST_LIBRARY='/nowhere/libb.so'"));
}

TEST(SharedLibraryTest, AVariableNamesALibrary) {
  setenv(kVariable, "libc.so.6", 1);
  auto library = SharedLibrary::Find({"", {"libnowhere.so.9"}, kVariable});
  unsetenv(kVariable);
  EXPECT_TRUE(library.ok()) << library.status();
}

TEST(SharedLibraryTest, AVariableGoesBeforeWhatIsInTheProcess) {
  setenv(kVariable, "/nowhere/libother.so", 1);
  const auto status = SharedLibrary::Find({"", {"libc.so.6"}, kVariable}).status();
  unsetenv(kVariable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nowhere/libother.so"));
}

TEST(SharedLibraryTest, LoadsByNameInTheEnd) {
  auto library =
      SharedLibrary::Find({"", {"libnowhere.so.9", "libnsl.so.1", "libutil.so.1"}, kVariable});
  EXPECT_TRUE(library.ok()) << library.status();
}

TEST(SharedLibraryTest, SaysWhatWasTried) {
  const auto status =
      SharedLibrary::Find({"", {"libnowhere.so.9", "libneither.so"}, kVariable}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  for (const char* name : {"libnowhere.so.9", "libneither.so", kVariable}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

}  // namespace
}  // namespace pelton
