#include "core/plan/plan.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorSpec Float(const std::string& name, uint64_t count) {
  return {name, DType::kFloat32, count, {}};
}

PlanOptions Options(uint64_t bucket_size_bytes, int32_t world_size = 1) {
  PlanOptions options;
  options.bucket_size_bytes = bucket_size_bytes;
  options.world_size = WorldSize(world_size);
  options.algorithm = "gradient_allreduce()";
  return options;
}

std::string ErrorOf(std::vector<TensorSpec> tensors, const PlanOptions& options) {
  return Plan::Build(std::move(tensors), options).status().ToString();
}

TEST(PlanTest, FillsBucketsInReverseRegistrationOrder) {
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 10), Float("c", 10)}, Options(80));
  ASSERT_EQ(plan.buckets().size(), 2u);
  EXPECT_THAT(plan.bucket(BucketId(0)).slots, ElementsAre(SlotId(2), SlotId(1)));
  EXPECT_THAT(plan.bucket(BucketId(1)).slots, ElementsAre(SlotId(0)));
  EXPECT_EQ(plan.slot(SlotId(1)).bucket, BucketId(0));
  EXPECT_EQ(plan.slot(SlotId(1)).index, 1);
}

TEST(PlanTest, ATensorLargerThanABucketIsABucketAlone) {
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 1000), Float("c", 10)}, Options(80));
  ASSERT_EQ(plan.buckets().size(), 3u);
  EXPECT_THAT(plan.bucket(BucketId(1)).slots, ElementsAre(SlotId(1)));
}

TEST(PlanTest, GroupsByDTypeAndDeviceAndReleasesByLastTensor) {
  std::vector<TensorSpec> tensors = {Float("a", 1),
                                     {"b", DType::kInt64, 1, {}},
                                     Float("c", 1),
                                     {"d", DType::kFloat32, 1, {DeviceKind::kCuda, 0}}};
  const Plan plan = *Plan::Build(tensors, Options(1000));
  ASSERT_EQ(plan.buckets().size(), 3u);
  EXPECT_THAT(plan.bucket(BucketId(0)).slots, ElementsAre(SlotId(3)));
  EXPECT_THAT(plan.bucket(BucketId(1)).slots, ElementsAre(SlotId(1)));
  EXPECT_THAT(plan.bucket(BucketId(2)).slots, ElementsAre(SlotId(2), SlotId(0)));
}

TEST(PlanTest, AlignsSlotsAndPadsToWorldSizeTimesAlignment) {
  PlanOptions options = Options(1000, 3);
  options.constraints.alignment_count = 8;
  const Plan plan = *Plan::Build({Float("a", 5), Float("b", 17)}, options);
  const BucketLayout& bucket = plan.bucket(BucketId(0));
  EXPECT_EQ(plan.slot(SlotId(1)).offset_bytes, 0u);
  EXPECT_EQ(plan.slot(SlotId(0)).offset_bytes, 128u);  // 68 bytes, to the next cache line
  EXPECT_EQ(bucket.content_count, 48u);                // 192 bytes
  EXPECT_EQ(bucket.flat_count, 48u);                   // a multiple of 24
  EXPECT_EQ(plan.flat_bytes(), 4096u);
}

TEST(PlanTest, PacksSlotsWhereThatIsAskedFor) {
  PlanOptions options = Options(1000, 2);
  options.constraints.packs_slots = true;
  options.buckets = {1, 0, 1};
  const Plan plan = *Plan::Build({Float("a", 3), Float("b", 5), Float("c", 4)}, options);
  ASSERT_EQ(plan.buckets().size(), 2u);
  const BucketLayout& bucket = plan.bucket(BucketId(1));
  EXPECT_THAT(bucket.slots, ElementsAre(SlotId(0), SlotId(2)));
  EXPECT_EQ(plan.slot(SlotId(2)).offset_bytes, plan.slot(SlotId(0)).offset_bytes + 3 * 4);
  EXPECT_EQ(bucket.content_count, 16u);  // it ends on a cache line all the same
}

TEST(PlanTest, StandaloneTensorsLieOutsideOfTheFlatPart) {
  PlanOptions options = Options(10000);
  options.standalone_bytes = 400;
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 100)}, options);
  const BucketLayout& bucket = plan.bucket(BucketId(0));
  EXPECT_THAT(bucket.slots, ElementsAre(SlotId(1), SlotId(0)));
  EXPECT_THAT(bucket.standalone, ElementsAre(SlotId(1)));
  EXPECT_TRUE(plan.slot(SlotId(1)).standalone);
  EXPECT_EQ(plan.slot(SlotId(0)).offset_bytes, 0u);
  EXPECT_EQ(bucket.flat_count, 16u);  // the small one

  options.constraints.allows_standalone = false;
  EXPECT_TRUE(Plan::Build({Float("b", 100)}, options)->bucket(BucketId(0)).standalone.empty());
}

TEST(PlanTest, PlansTensorsWithoutElements) {
  const Plan plan = *Plan::Build({Float("a", 0), Float("b", 4)}, Options(100));
  EXPECT_THAT(plan.bucket(BucketId(0)).slots, ElementsAre(SlotId(1), SlotId(0)));
  EXPECT_EQ(plan.slot(SlotId(0)).size_bytes, 0u);
  EXPECT_EQ(plan.bucket(BucketId(0)).content_count, 16u);
}

TEST(PlanTest, RefusesWhatCannotBePlanned) {
  EXPECT_THAT(ErrorOf({}, Options(100)), HasSubstr("no tensor"));
  EXPECT_THAT(ErrorOf({Float("", 1)}, Options(100)), HasSubstr("tensor 0 has no name"));
  EXPECT_THAT(ErrorOf({Float("x", 1), Float("x", 2)}, Options(100)),
              HasSubstr("two tensors are named 'x'"));
  EXPECT_THAT(ErrorOf({Float("x", ~uint64_t{0})}, Options(100)), HasSubstr("tensor 'x' has"));
  EXPECT_THAT(ErrorOf({Float("x", limits::kMaxPlanBytes / 2)}, Options(100)),
              HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(ErrorOf({Float("x", 1)}, Options(0)), HasSubstr("bucket_size_bytes is 0"));
  EXPECT_THAT(ErrorOf({Float("x", 1)}, Options(100, 0)), HasSubstr("world_size is 0"));
  PlanOptions options = Options(100);
  options.constraints.alignment_count = 0;
  EXPECT_THAT(ErrorOf({Float("x", 1)}, options), HasSubstr("alignment_count is 0"));
  options = Options(100);
  options.standalone_bytes = 0;
  EXPECT_THAT(ErrorOf({Float("x", 1)}, options), HasSubstr("standalone_bytes is 0"));
}

TEST(PlanTest, ResizedIsTheNextVersionWithOtherBuckets) {
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 10), Float("c", 10)}, Options(80));
  const Plan next = *plan.Resized({{SlotId(0), SlotId(2), SlotId(1)}}, 40);
  EXPECT_EQ(next.version(), PlanVersion(2));
  EXPECT_EQ(next.options().bucket_size_bytes, 40u);
  ASSERT_EQ(next.buckets().size(), 3u);
  EXPECT_THAT(next.bucket(BucketId(1)).slots, ElementsAre(SlotId(2)));
  EXPECT_THAT(plan.Resized({{SlotId(0)}}, 40).status().ToString(), HasSubstr("order of 1 slots"));
  EXPECT_THAT(plan.Resized({{SlotId(0), SlotId(2), SlotId(1)}}, 0).status().ToString(),
              HasSubstr("bucket_size_bytes is 0"));
}

TEST(PlanTest, ReorderedIsTheNextVersion) {
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 10), Float("c", 10)}, Options(80));
  const Plan next = *plan.Reordered({{SlotId(1), SlotId(0), SlotId(2)}});
  EXPECT_EQ(next.version(), PlanVersion(2));
  EXPECT_THAT(next.bucket(BucketId(0)).slots, ElementsAre(SlotId(1), SlotId(0)));
  EXPECT_NE(next.Hash(), plan.Hash());
  // Back to the first order: a third version of the same layout.
  EXPECT_EQ(next.Reordered({{SlotId(2), SlotId(1), SlotId(0)}})->Hash(), plan.Hash());
}

TEST(PlanTest, RefusesAnOrderThatIsNoPermutation) {
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 10)}, Options(80));
  EXPECT_THAT(plan.Reordered({{SlotId(0)}}).status().ToString(), HasSubstr("order of 1 slots"));
  EXPECT_THAT(plan.Reordered({{SlotId(0), SlotId(0)}}).status().ToString(),
              HasSubstr("slot 0 twice"));
  EXPECT_THAT(plan.Reordered({{SlotId(0), SlotId(2)}}).status().ToString(),
              HasSubstr("names slot 2"));
  EXPECT_THAT(plan.Reordered({{SlotId(0), SlotId(-1)}}).status().ToString(),
              HasSubstr("names slot -1"));
}

TEST(PlanTest, HashIsStableAcrossProcesses) {
  const Plan plan = *Plan::Build({Float("fc.weight", 6), Float("fc.bias", 3)}, Options(1000, 2));
  EXPECT_EQ(plan.Hash(), 0x8c205ad22f08ffb0u) << plan.Serialize();
}

TEST(PlanTest, HashAndFirstDifferenceSeeEveryField) {
  const std::vector<TensorSpec> tensors = {Float("a", 10), Float("b", 10)};
  const Plan plan = *Plan::Build(tensors, Options(1000));
  const auto differs = [&](std::vector<TensorSpec> other_tensors, const PlanOptions& options,
                           const std::string& text) {
    const Plan other = *Plan::Build(std::move(other_tensors), options);
    EXPECT_NE(other.Hash(), plan.Hash()) << text;
    EXPECT_THAT(FirstDifference(plan.Serialize(), other.Serialize()), HasSubstr(text));
  };
  differs({Float("a", 10), Float("c", 10)}, Options(1000), "there: tensor 'c' float32 x 10");
  differs({Float("a", 10), Float("b", 11)}, Options(1000), "there: tensor 'b' float32 x 11");
  differs({Float("a", 10), {"b", DType::kInt32, 10, {}}}, Options(1000), "int32 x 10");
  differs({Float("b", 10), Float("a", 10)}, Options(1000), "there: tensor 'a'");
  differs({Float("a", 10)}, Options(1000), "plan of 1 tensors");
  differs(tensors, Options(999), "bucket_size_bytes 999");
  differs(tensors, Options(1000, 2), "for 2 ranks");
  PlanOptions options = Options(1000);
  options.algorithm = "other";
  differs(tensors, options, "algorithm other");
  options = Options(1000);
  options.constraints.alignment_count = 100;
  differs(tensors, options, "flat part of 100 elements");
  EXPECT_EQ(FirstDifference(plan.Serialize(), plan.Serialize()), "");
}

TEST(PlanTest, NamesAreEscapedInTheSerialisedForm) {
  const Plan one = *Plan::Build({Float("a\nb", 1)}, Options(100));
  EXPECT_FALSE(absl::StrContains(one.Serialize(), "a\nb"));
}

TEST(PlanTest, TheGapBehindASlotCountsToIt) {
  PlanOptions options = Options(4000);
  options.standalone_bytes = 400;
  const Plan plan = *Plan::Build({Float("a", 10), Float("b", 100), Float("c", 20)}, options);
  std::vector<SlotId> slots;
  std::vector<uint64_t> bounds;
  plan.ForEachFlatSlot(plan.bucket(BucketId(0)), [&](SlotId slot, uint64_t begin, uint64_t end) {
    slots.push_back(slot);
    bounds.insert(bounds.end(), {begin, end});
  });
  EXPECT_THAT(slots, ElementsAre(SlotId(2), SlotId(0)));
  EXPECT_THAT(bounds, ElementsAre(0, 32, 32, std::numeric_limits<uint64_t>::max()));
}

TEST(PlanTest, DescribeNamesAFewTensors) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 5; ++i) tensors.push_back(Float(absl::StrCat("t", i), 1));
  const Plan plan = *Plan::Build(tensors, Options(1000));
  EXPECT_EQ(plan.Describe(BucketId(0)), "bucket 0 (t4, t3, t2 and 2 more)");
}

TEST(PlanTest, TheOrderOfElementsIsPartOfTheText) {
  TensorSpec here = Float("conv.weight", 108);
  TensorSpec there = here;
  here.layout = "strides [27, 9, 3, 1]";
  there.layout = "strides [27, 1, 9, 3]";
  const Plan mine = *Plan::Build({here}, Options(1000));
  const Plan theirs = *Plan::Build({there}, Options(1000));
  EXPECT_NE(mine.Hash(), theirs.Hash());
  const std::string difference = FirstDifference(mine.Serialize(), theirs.Serialize());
  EXPECT_THAT(difference, HasSubstr("conv.weight"));
  EXPECT_THAT(difference, HasSubstr("strides [27, 9, 3, 1]"));
  EXPECT_THAT(difference, HasSubstr("strides [27, 1, 9, 3]"));
}

}  // namespace
}  // namespace pelton
