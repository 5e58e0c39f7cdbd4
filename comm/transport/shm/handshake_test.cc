// Strangers at the ranks' sockets: whatever they say, or do not say, the ranks meet.
#include "comm/transport/shm/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "comm/control/host_identity.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/socket.h"
#include "comm/transport/shm/test_transports.h"

namespace pelton::shm {
namespace {

using testing::HasSubstr;

constexpr char kToken[] = "0123456789abcdef";
constexpr uint64_t kSeed = 31;

absl::Time Late() { return absl::Now() + absl::Seconds(30); }

// The last rank's bootstrap: has strangers go to rank 0 before that rank connects to it.
// Threads: one. Owns: the strangers' connections.
class Knocking : public Bootstrap {
 public:
  using Stranger = std::function<void(int socket, int number)>;

  Knocking(Bootstrap& inner, int count, Stranger stranger)
      : inner_(inner), count_(count), stranger_(std::move(stranger)) {}

  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override {
    auto all = inner_.AllGather(key, value, deadline);
    if (!all.ok()) return all;
    const std::vector<std::string> parts = absl::StrSplit(all->front(), ' ');
    for (int i = 0; i < count_; ++i) {
      auto connection = Connect(parts.back(), deadline);
      EXPECT_TRUE(connection.ok()) << connection.status();
      if (!connection.ok()) break;
      stranger_(connection->get(), i);
      connections_.push_back(*std::move(connection));
    }
    return all;
  }

  std::vector<Descriptor>& connections() { return connections_; }

 private:
  Bootstrap& inner_;
  const int count_;
  const Stranger stranger_;
  std::vector<Descriptor> connections_;
};

absl::StatusOr<std::vector<Peer>> Meet(int rank, int world_size, Bootstrap& bootstrap,
                                       absl::Time deadline = Late()) {
  return MeetPeers({Rank(rank), WorldSize(world_size), kToken, &bootstrap, deadline});
}

// Rank 0 and rank 1 meet while `count` strangers knock at rank 0's door.
void ExpectMeeting(int count, Knocking::Stranger stranger) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  MeetingPlace place(2);
  TestBootstrap first(place, 0);
  TestBootstrap second(place, 1);
  Knocking knocking(second, count, std::move(stranger));
  std::thread other([&] {
    const auto peers = Meet(1, 2, knocking);
    EXPECT_TRUE(peers.ok()) << peers.status();
  });
  const auto peers = Meet(0, 2, first);
  EXPECT_TRUE(peers.ok()) << peers.status();
  other.join();
  EXPECT_EQ(knocking.connections().size(), static_cast<size_t>(count));
}

TEST(HandshakeTest, StrangersWhoSayNothingHoldUpNobody) {
  const absl::Time start = absl::Now();
  ExpectMeeting(150, [](int, int) {});
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(HandshakeTest, NoiseIsRefused) {
  std::mt19937_64 random(kSeed);
  ExpectMeeting(100, [&](int socket, int) {
    std::string bytes(1 + random() % 8192, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    (void)send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

TEST(HandshakeTest, WellFormedLiesAreRefused) {
  std::mt19937_64 random(kSeed);
  ExpectMeeting(100, [&](int socket, int number) {
    Frame frame;
    frame.type = number % 2 == 0 ? uint32_t{Frame::kHello} : static_cast<uint32_t>(random() % 8);
    frame.rank = number % 3 == 0 ? 1 : static_cast<int32_t>(random());
    frame.address = random();
    // The right length, and a wrong letter somewhere; or the right token from a rank that is none.
    std::string token = kToken;
    if (frame.rank == 1) token[random() % token.size()] ^= 1;
    EXPECT_TRUE(Send(socket, frame, token).ok());
  });
}

TEST(HandshakeTest, WhoNeverComesIsNamedWithThoseWhoWereRefused) {
  MeetingPlace place(2);
  TestBootstrap first(place, 0);
  std::thread other([&] {
    TestBootstrap second(place, 1);
    Frame frame;
    frame.type = Frame::kHello;
    frame.rank = 1;
    Knocking knocking(second, 1, [&](int socket, int) {
      EXPECT_TRUE(Send(socket, frame, "another job's token").ok());
    });
    const HostIdentity here = HostIdentity::OfThisProcess();
    const std::string address = absl::StrCat(here.boot_id, " ", here.network_namespace, " nowhere");
    EXPECT_TRUE(knocking.AllGather("transport/shm/address", address, Late()).ok());
    ASSERT_FALSE(knocking.connections().empty());
    EXPECT_FALSE(Receive(knocking.connections()[0].get(), Late()).ok()) << "it was not refused";
  });
  const absl::Status status = Meet(0, 2, first, absl::Now() + absl::Milliseconds(500)).status();
  other.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank(s) 1 did not connect; refused: process"));
}

}  // namespace
}  // namespace pelton::shm
