#include "comm/all_to_all_v.h"

#include <numeric>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/tags.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "core/base/moving_deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Parts = std::vector<TensorPart>;

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

// Rank 1 of three, whose peers never come; what needs them is in the transports' conformance suite.
class AllToAllVTest : public testing::Test {
 protected:
  AllToAllVTest() : world_(*fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(3)))) {
    std::iota(source_.begin(), source_.end(), 0);
  }

  absl::Status Run(Tensor source, const Parts& source_parts, const Parts& target_parts) {
    return AllToAllV(*world_[1], source, source_parts, TensorOf(target_), target_parts,
                     absl::Now());
  }

  std::string Refusal(Tensor source, const Parts& source_parts, const Parts& target_parts) {
    const absl::Status status = Run(source, source_parts, target_parts);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_FALSE(world_[1]->Query({1}).status.ok());  // nothing was launched
    return std::string(status.message());
  }

  SimFabric fabric_{WorldSize(3)};
  std::vector<std::unique_ptr<Communicator>> world_;
  std::vector<int32_t> source_ = std::vector<int32_t>(6);
  std::vector<int32_t> target_ = std::vector<int32_t>(6);
  const Parts even_ = {{0, 2}, {2, 2}, {4, 2}};
};

TEST_F(AllToAllVTest, RefusesAnotherNumberOfParts) {
  EXPECT_THAT(Refusal(TensorOf(source_), {{0, 2}, {2, 2}}, even_),
              HasSubstr("rank 1: source_parts: 2 parts for 3 ranks"));
  EXPECT_THAT(Refusal(TensorOf(source_), even_, {}), HasSubstr("target_parts: 0 parts"));
}

TEST_F(AllToAllVTest, RefusesPartsOutsideOfTheTensor) {
  EXPECT_THAT(Refusal(TensorOf(source_), {{0, 2}, {2, 2}, {5, 2}}, even_),
              HasSubstr("source_parts[2]: 2 elements at 5 are not inside of the tensor's 6"));
  EXPECT_THAT(Refusal(TensorOf(source_), even_, {{UINT64_MAX, 2}, {2, 2}, {4, 2}}),
              HasSubstr("target_parts[0]: 2 elements at 18446744073709551615"));
  EXPECT_THAT(Refusal(TensorOf(source_), even_, {{0, UINT64_MAX}, {2, 2}, {4, 2}}),
              HasSubstr("target_parts[0]"));
}

TEST_F(AllToAllVTest, RefusesTargetsThatOverlap) {
  EXPECT_THAT(Refusal(TensorOf(source_), even_, {{4, 2}, {0, 2}, {1, 2}}),
              HasSubstr("target_parts[1] and [2] overlap at element 1"));
}

TEST_F(AllToAllVTest, RefusesOwnPartsOfDifferentSizes) {
  EXPECT_THAT(Refusal(TensorOf(source_), even_, {{0, 2}, {2, 1}, {4, 2}}),
              AllOf(HasSubstr("source_parts[1]: 2 elements"), HasSubstr("target_parts[1]: 1")));
}

TEST_F(AllToAllVTest, RefusesNullDataAndOtherDTypes) {
  EXPECT_THAT(Refusal({nullptr, 6, DType::kInt32}, even_, even_), HasSubstr("source: null data"));
  EXPECT_THAT(Refusal({source_.data(), 6, DType::kFloat32}, even_, even_),
              HasSubstr("source is float32, target is int32"));
}

TEST_F(AllToAllVTest, MissesItsDeadlineAndAborts) {
  const absl::Status status = Run(TensorOf(source_), even_, even_);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_FALSE(Barrier(*world_[1]).ok());
  EXPECT_THAT(target_, ElementsAre(0, 0, 2, 3, 0, 0));  // its own part needed nobody
}

TEST(AllToAllVTimeTest, ItsDeadlineStandsStill) {
  SimExecutor executor(1);
  SimFabric fabric(WorldSize(2), {{absl::Hours(1), 0, {}}, 0, &executor.clock()});
  executor.AddEventSource(&fabric);
  auto world = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(2)));
  std::vector<int32_t> source = {1, 2}, target = {0, 0}, sent = {7}, received = {0};
  ASSERT_TRUE(Send(*world[1], TensorOf(sent), Rank(0), kAllToAllVTag).ok());
  ASSERT_TRUE(Recv(*world[1], TensorOf(received), Rank(0), kAllToAllVTag).ok());
  const Parts parts = {{0, 1}, {1, 1}};
  Standstill standstill;
  standstill.Begin(executor.Now());
  EXPECT_EQ(AllToAllV(*world[0], TensorOf(source), parts, TensorOf(target), parts,
                      executor.Now() + absl::Minutes(1), &standstill),
            absl::OkStatus());
  EXPECT_THAT(target, ElementsAre(1, 7));
  executor.RemoveEventSource(&fabric);
}

TEST(AllToAllVAloneTest, CopiesTheOwnPart) {
  SimFabric fabric(WorldSize(1));
  auto world = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(1)));
  std::vector<int32_t> source = {1, 2, 3}, target = {0, 0};
  const Parts from = {{1, 2}}, to = {{0, 2}};
  EXPECT_EQ(AllToAllV(*world[0], TensorOf(source), from, TensorOf(target), to, absl::Now()),
            absl::OkStatus());
  EXPECT_THAT(target, ElementsAre(2, 3));
}

}  // namespace
}  // namespace pelton
