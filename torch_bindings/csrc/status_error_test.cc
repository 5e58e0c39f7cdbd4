// How a status leaves through a caller that knows exceptions only.
#include "torch_bindings/csrc/status_error.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

// An exception of another language's.
struct Foreign {
  std::string text;
};

TEST(StatusErrorTest, AnErrorIsThrownWithItsCodeAndText) {
  const absl::Status error = absl::UnavailableError("rank 3 has died");
  try {
    ThrowIfError(error);
    FAIL() << "it did not throw";
  } catch (const StatusError& thrown) {
    EXPECT_EQ(thrown.status(), error);
    EXPECT_STREQ(thrown.what(), "rank 3 has died");
  }
  EXPECT_NO_THROW(ThrowIfError(absl::OkStatus()));
}

TEST(StatusErrorTest, AValueMovesOutAndAnErrorInItsPlaceIsThrown) {
  absl::StatusOr<std::unique_ptr<int>> given = std::make_unique<int>(5);
  int* const made = given->get();
  EXPECT_EQ(ValueOrThrow(std::move(given)).get(), made);
  EXPECT_THROW(ValueOrThrow(absl::StatusOr<int>(absl::NotFoundError("key"))), StatusError);
}

TEST(StatusErrorTest, AnotherLanguagesExceptionComesInItsPlace) {
  SetThrower([](const absl::Status& status) { throw Foreign{std::string(status.message())}; });
  try {
    ThrowStatus(absl::AbortedError("rank 0 called abort()"));
    FAIL() << "it did not throw";
  } catch (const Foreign& thrown) {
    EXPECT_EQ(thrown.text, "rank 0 called abort()");
  }
  SetThrower(nullptr);
  EXPECT_THROW(ThrowStatus(absl::AbortedError("")), StatusError);
}

}  // namespace
}  // namespace pelton::torch_bindings
