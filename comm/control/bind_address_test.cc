#include "comm/control/bind_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pelton {
namespace {

using testing::AnyOf;

constexpr char kNothing[] = "no such host";  // which no resolver takes for a name

TEST(BindAddressTest, IsThatOfAnInterfaceOrItself) {
  EXPECT_EQ(ResolveBindAddress("127.0.0.1").value(), "127.0.0.1");
  EXPECT_EQ(ResolveBindAddress("::1").value(), "[::1]");
  EXPECT_EQ(ResolveBindAddress("lo").value(), "127.0.0.1");
  EXPECT_EQ(ResolveBindAddress("localhost").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ResolveBindAddress(kNothing).status().code(), absl::StatusCode::kNotFound);
}

TEST(ServingAddressTest, IsThatOfAHostToo) {
  EXPECT_EQ(ResolveServingAddress("lo").value(), "127.0.0.1");
  EXPECT_THAT(ResolveServingAddress("localhost").value(), AnyOf("127.0.0.1", "[::1]"));
  EXPECT_EQ(ResolveServingAddress(kNothing).status().code(), absl::StatusCode::kNotFound);
}

TEST(BindAddressTest, IsNoWildcardHoweverItIsWritten) {
  for (const char* wildcard : {"0.0.0.0", "::", "0", "0::0"}) {
    EXPECT_EQ(ResolveBindAddress(wildcard).status().code(), absl::StatusCode::kInvalidArgument)
        << wildcard;
  }
}

TEST(InterfaceNameTest, IsFoundByAnAddressToo) {
  EXPECT_EQ(ResolveInterfaceName("lo").value(), "lo");
  EXPECT_EQ(ResolveInterfaceName("127.0.0.1").value(), "lo");
  EXPECT_EQ(ResolveInterfaceName("192.0.2.1").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace pelton
