#include "comm/control/bind_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pelton {
namespace {

using testing::AnyOf;

TEST(BindAddressTest, IsThatOfAnInterfaceOrAHostOrItself) {
  EXPECT_EQ(ResolveBindAddress("127.0.0.1").value(), "127.0.0.1");
  EXPECT_EQ(ResolveBindAddress("::1").value(), "[::1]");
  EXPECT_EQ(ResolveBindAddress("lo").value(), "127.0.0.1");
  EXPECT_THAT(ResolveBindAddress("localhost").value(), AnyOf("127.0.0.1", "[::1]"));
  EXPECT_EQ(ResolveBindAddress("no-such-host.invalid").status().code(),
            absl::StatusCode::kNotFound);
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
