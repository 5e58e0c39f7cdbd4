#include "comm/transport/ucx/ucx_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace pelton::ucx {
namespace {

using testing::HasSubstr;

// The library is looked up once a process, so that one test sets the variable before any other.
TEST(UcxLibraryTest, NamesWhatToInstallWhereThereIsNone) {
  ASSERT_EQ(setenv("PELTON_UCX_LIBRARY", "/nowhere/libucp.so.0", /*overwrite=*/1), 0);
  const absl::Status loaded = LoadUcx();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kNotFound) << loaded;
  EXPECT_THAT(loaded.message(), HasSubstr("apt-get install libucx0"));
  EXPECT_THAT(loaded.message(), HasSubstr("/nowhere/libucp.so.0"));
  // A transport that is asked for then says the same, and the process goes on.
  EXPECT_EQ(Context::Make("").status(), loaded);
}

}  // namespace
}  // namespace pelton::ucx
