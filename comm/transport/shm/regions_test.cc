// Regions that a rank takes back while other communicators, or its peers, still use them.
#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/transport/shm/test_transports.h"
#include "core/base/clock.h"
#include "core/memory/region.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using Ends = std::vector<std::unique_ptr<Communicator>>;

// Drives both ranks in turns until their operations have ended, and returns how each did.
std::vector<absl::Status> DriveBoth(const Ends& ends, const Completion (&completions)[2]) {
  const absl::Time until = Clock::Real().Now() + absl::Seconds(20);
  const auto is_done = [&](int rank) { return ends[rank]->Query(completions[rank]).done; };
  while (!is_done(0) || !is_done(1)) {
    if (Clock::Real().Now() > until) {
      return std::vector<absl::Status>(2, absl::DeadlineExceededError("the ranks wait for ever"));
    }
    for (const std::unique_ptr<Communicator>& end : ends) end->Progress();
  }
  return {ends[0]->Query(completions[0]).status, ends[1]->Query(completions[1]).status};
}

// Such as after an abort of another communicator whose peer was stopped while it wrote there.
TEST(RegionsTest, AnAllReduceWhoseLastSegmentIsSmallFailsWhereItsMemoryWasTakenBack) {
  const auto transports = MakeTestTransports(WorldSize(2));
  const Ends ends = OpenWorld(transports, CommunicatorId(1));
  const size_t count = (ends[0]->piece_bytes() + 4096) / sizeof(float);
  const auto region = *Region::Create(count * sizeof(float), "test");
  ASSERT_TRUE(ends[0]->Register(*region).ok());
  std::fill_n(reinterpret_cast<float*>(region->data()), count, 1.0f);
  std::vector<float> own(count, 2.0f);
  const Tensor shared{region->data(), count, DType::kFloat32};
  const Tensor own_tensor{own.data(), count, DType::kFloat32};
  Completion completions[2];
  completions[0] = *AllReduce(*ends[0], shared, shared, ReduceOp::kSum);
  ASSERT_TRUE(Unshare(region->id()).ok());
  completions[1] = *AllReduce(*ends[1], own_tensor, own_tensor, ReduceOp::kSum);
  const std::vector<absl::Status> statuses = DriveBoth(ends, completions);
  EXPECT_TRUE(absl::IsUnavailable(statuses[0])) << statuses[0];
}

TEST(RegionsTest, WhatAnotherCommunicatorRegisteredIsReceivedAfterThatOneHasEnded) {
  const auto transports = MakeTestTransports(WorldSize(2));
  Ends owners = OpenWorld(transports, CommunicatorId(1));
  const Ends ends = OpenWorld(transports, CommunicatorId(2));
  constexpr size_t kCount = 16'384;  // 64 KiB
  const auto region = *Region::Create(kCount * sizeof(float), "test");
  ASSERT_TRUE(owners[0]->Register(*region).ok());
  std::fill_n(reinterpret_cast<float*>(region->data()), kCount, 3.0f);
  std::vector<float> received(kCount);
  Completion completions[2];
  completions[0] = *Send(*ends[0], {region->data(), kCount, DType::kFloat32}, Rank(1));
  owners.clear();
  // Its messages come after those by which the region goes.
  const Ends later = OpenWorld(transports, CommunicatorId(3));
  completions[1] = *Recv(*ends[1], {received.data(), kCount, DType::kFloat32}, Rank(0));
  for (const absl::Status& status : DriveBoth(ends, completions)) {
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(std::count(received.begin(), received.end(), 3.0f), kCount);
}

}  // namespace
}  // namespace pelton::shm
