#include "backend/route.h"

#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(InterfaceTowardsTest, LoopbackIsReachedByLoopback) {
  for (const char* address : {"127.0.0.1:80", "localhost:80"}) {
    const absl::StatusOr<std::string> interface = InterfaceTowards(address);
    ASSERT_TRUE(interface.ok()) << interface.status();
    EXPECT_EQ(*interface, "lo");
  }
}

TEST(InterfaceTowardsTest, NamesWhatIsWrong) {
  EXPECT_EQ(InterfaceTowards("127.0.0.1").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(InterfaceTowards(":80").status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status status = InterfaceTowards("no-such-host.invalid:80").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("no-such-host.invalid:80"), absl::string_view::npos);
}

}  // namespace
}  // namespace pelton
