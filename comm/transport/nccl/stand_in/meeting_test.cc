#include "comm/transport/nccl/stand_in/meeting.h"

#include <string>
#include <thread>
#include <vector>

#include "comm/transport/shm/socket.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::stand_in {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Time In(absl::Duration duration) { return Clock::Real().Now() + duration; }
absl::Time FarDeadline() { return In(absl::Seconds(60)); }

// What a rank that attends and gathers its own number hears, or why not, in one text.
std::string NumbersHeardBy(const Place& place, const std::atomic<bool>& cancelled,
                           absl::Time deadline) {
  const auto meeting = Meeting::Attend(place, cancelled, deadline);
  if (!meeting.ok()) return meeting.status().ToString();
  std::string heard;
  for (const std::string key : {"first", "second"}) {
    const auto values =
        (*meeting)->AllGather(key, key[0] + std::to_string(place.rank), FarDeadline());
    if (!values.ok()) return values.status().ToString();
    for (const std::string& value : *values) heard += value + " ";
  }
  return heard;
}

TEST(MeetingTest, EveryRankHearsAllOfThemInOrder) {
  constexpr int kRanks = 4;
  const std::string name = shm::RandomAddress();
  const std::atomic<bool> cancelled = false;
  std::vector<std::string> heard(kRanks);
  std::vector<std::thread> threads;
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      heard[static_cast<size_t>(rank)] =
          NumbersHeardBy({name, rank, kRanks}, cancelled, FarDeadline());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(heard, Each(std::string("f0 f1 f2 f3 s0 s1 s2 s3 ")));
}

TEST(MeetingTest, OneRankMeetsItself) {
  const std::atomic<bool> cancelled = false;
  const auto meeting = Meeting::Attend({shm::RandomAddress(), 0, 1}, cancelled, FarDeadline());
  ASSERT_TRUE(meeting.ok());
  EXPECT_THAT(*(*meeting)->AllGather("key", "own", FarDeadline()), ElementsAre("own"));
}

TEST(MeetingTest, MissingRanksAreNamed) {
  const std::string name = shm::RandomAddress();
  const std::atomic<bool> cancelled = false;
  std::string heard;
  const absl::Time deadline = In(absl::Milliseconds(300));
  std::thread other([&] { heard = NumbersHeardBy({name, 2, 4}, cancelled, deadline); });
  EXPECT_THAT(NumbersHeardBy({name, 0, 4}, cancelled, deadline),
              HasSubstr("rank(s) 1, 3 have not come"));
  other.join();
  EXPECT_THAT(heard, HasSubstr("UNAVAILABLE: rank 2: gathering first"));
}

TEST(MeetingTest, AMissingFirstRankIsNamed) {
  const std::atomic<bool> cancelled = false;
  EXPECT_THAT(NumbersHeardBy({shm::RandomAddress(), 1, 2}, cancelled, In(absl::Milliseconds(100))),
              HasSubstr("DEADLINE_EXCEEDED: rank 1 of 2: rank(s) 0 have not come"));
}

TEST(MeetingTest, ACancelledRankWaitsNoLonger) {
  const std::atomic<bool> cancelled = true;
  for (const int rank : {0, 1}) {
    EXPECT_THAT(NumbersHeardBy({shm::RandomAddress(), rank, 2}, cancelled, FarDeadline()),
                HasSubstr("CANCELLED"));
  }
}

TEST(MeetingTest, TwoProcessesMayNotBeTheSameRank) {
  const std::string name = shm::RandomAddress();
  const std::atomic<bool> cancelled = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] { NumbersHeardBy({name, 1, 3}, cancelled, FarDeadline()); });
  }
  EXPECT_THAT(NumbersHeardBy({name, 0, 3}, cancelled, FarDeadline()),
              HasSubstr("a process says that it is rank 1"));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace pelton::stand_in
