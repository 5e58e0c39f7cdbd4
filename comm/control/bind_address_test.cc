#include "comm/control/bind_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>

#include <string>
#include <vector>

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

// The first of `addresses` is the list's first one.
std::string BestOf(const std::vector<std::string>& addresses) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<addrinfo*> lists;
  for (const std::string& address : addresses) {
    addrinfo* list = nullptr;
    EXPECT_EQ(getaddrinfo(address.c_str(), nullptr, &hints, &list), 0) << address;
    if (!lists.empty()) lists.back()->ai_next = list;
    lists.push_back(list);
  }
  const std::string best = BestAddressOf(lists.front());
  freeaddrinfo(lists.front());
  return best;
}

TEST(ServingAddressTest, IsOneThatOtherHostsReachWhereThereIsOne) {
  EXPECT_EQ(BestOf({"127.0.1.1", "192.0.2.7", "192.0.2.8"}), "192.0.2.7");
  EXPECT_EQ(BestOf({"2001:db8::1", "192.0.2.7"}), "192.0.2.7");
  EXPECT_EQ(BestOf({"127.0.1.1", "2001:db8::1"}), "[2001:db8::1]");
  EXPECT_EQ(BestOf({"::1", "127.0.1.1"}), "127.0.1.1");
  EXPECT_EQ(BestOf({"fe80::1", "127.0.1.1"}), "127.0.1.1") << "fe80::1 needs an interface's name";
  EXPECT_EQ(BestOf({"fe80::1"}), "");
}

TEST(BindAddressTest, IsNoWildcardHoweverItIsWritten) {
  for (const char* wildcard : {"0.0.0.0", "::", "0", "0::0", "::ffff:0.0.0.0", "0::FFFF:0:0"}) {
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
