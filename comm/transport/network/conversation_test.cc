// What a rank hears while it waits for the greetings.
#include "comm/transport/network/conversation.h"

#include <arpa/inet.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "core/base/sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::network {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr char kToken[] = "a job's token";

// Of rank `rank`, which lets the others connect.
struct End {
  explicit End(int rank) {
    TransportOptions options;
    options.rank = Rank(rank);
    options.world_size = WorldSize(kRanks);
    options.job_token = kToken;
    network = *tcp::MakeTcpNetwork(options);
    Members members(kToken, CommunicatorId(3), Group::World(WorldSize(kRanks)), Rank(rank));
    conversation = *Conversation::Create(*network, std::move(members));
    address = *conversation->AcceptFrom({htonl(INADDR_LOOPBACK)});
  }

  std::unique_ptr<Network> network;
  std::unique_ptr<Conversation> conversation;
  std::string address;
};

// Rank 1 is stopped before it greets, and rank 2 has no time.
TEST(ConversationTest, GreetHearsOfAPeerThatGaveUp) {
  std::array<End, kRanks> ends = {End(0), End(1), End(2)};
  std::vector<std::string> addresses;
  for (const End& end : ends) addresses.push_back(end.address);
  std::atomic<bool> has_ended = false;
  std::thread gives_up([&] {
    Conversation& conversation = *ends[2].conversation;
    EXPECT_TRUE(absl::IsDeadlineExceeded(conversation.Greet(addresses, absl::Now())));
    while (!has_ended) {
      MutexLock lock(&conversation.mutex());
      conversation.worker().Progress();
    }
  });
  const absl::Status met = ends[0].conversation->Greet(addresses, absl::Now() + absl::Seconds(60));
  has_ended = true;
  gives_up.join();
  EXPECT_THAT(std::string(met.message()), HasSubstr("rank 2 aborted: rank(s) "));
}

}  // namespace
}  // namespace pelton::network
