#include "backend/route.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

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

TEST(SplitAddressTest, TakesAnIpv6AddressInBracketsOnly) {
  EXPECT_EQ(SplitAddress("node1:80")->host, "node1");
  EXPECT_EQ(SplitAddress("node1:80")->port, "80");
  EXPECT_EQ(SplitAddress("[::1]:80")->host, "::1");
  const absl::Status status = SplitAddress("::1:80").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("brackets"), absl::string_view::npos) << status;
}

// An address of an interface, in a list that `next` goes on with.
// Threads: one. Owns: the address.
struct Interface {
  Interface(const char* name, const char* address, Interface* next) {
    v4.sin_family = AF_INET;
    inet_pton(AF_INET, address, &v4.sin_addr);
    entry.ifa_name = const_cast<char*>(name);
    entry.ifa_addr = reinterpret_cast<sockaddr*>(&v4);
    entry.ifa_next = next == nullptr ? nullptr : &next->entry;
  }

  sockaddr_in v4 = {};
  ifaddrs entry = {};
};

TEST(InterfaceWithTest, GivesTheRoutesAddressWhereTheInterfacesNameStandsForAnotherOne) {
  Interface third("eth0", "192.168.1.5", nullptr);
  Interface second("lo", "10.9.0.5", &third);
  Interface first("lo", "127.0.0.1", &second);
  const auto with = [&first](const Interface& source) {
    return *InterfaceWith(*source.entry.ifa_addr, &first.entry);
  };
  EXPECT_EQ(with(first), "lo");
  EXPECT_EQ(with(second), "10.9.0.5");
  EXPECT_EQ(with(third), "eth0");
  const Interface none("lo", "10.9.0.6", nullptr);
  EXPECT_EQ(InterfaceWith(*none.entry.ifa_addr, &first.entry).status().code(),
            absl::StatusCode::kNotFound);
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
