#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/transport.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

absl::StatusOr<std::unique_ptr<Transport>> Make(const std::string& job, int32_t rank, int32_t n) {
  const auto entry = TransportRegistry::Get().Find("sim");
  if (!entry.ok()) return entry.status();
  TransportOptions options;
  options.job_token = job;
  options.rank = Rank(rank);
  options.world_size = WorldSize(n);
  return entry->factory(options);
}

TEST(SimRegistrationTest, RanksOfOneJobMeet) {
  std::vector<std::thread> ranks;
  for (int32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([rank] {
      auto transport = Make("meet", rank, 2);
      ASSERT_TRUE(transport.ok()) << transport.status();
      const absl::Time deadline = absl::Now() + absl::Minutes(1);
      auto opened = (*transport)->Open(CommunicatorId(1), Group::World(WorldSize(2)), deadline);
      ASSERT_TRUE(opened.ok()) << opened.status();
      const auto barrier = Barrier(**opened);
      ASSERT_TRUE(barrier.ok()) << barrier.status();
      EXPECT_EQ(Await(**opened, *barrier, deadline), absl::OkStatus());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(SimRegistrationTest, TwoJobsDoNotMeet) {
  auto first = Make("first", 0, 2);
  auto second = Make("second", 1, 2);
  ASSERT_TRUE(first.ok() && second.ok());
  const auto opened = (*first)->Open(CommunicatorId(1), Group::World(WorldSize(2)), absl::Now());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(SimRegistrationTest, RefusesWhatDoesNotFit) {
  auto first = Make("size", 0, 2);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Make("size", 1, 3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Make("size", 2, 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Make("size", -1, 2).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace pelton
