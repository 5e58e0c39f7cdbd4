// A parameter's gradient, momentum and weight on their way into a bucket and out of it.
#include "torch_bindings/csrc/tensor_slots.h"

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/shared_allocator.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Floats = std::vector<float>;

at::Tensor Parameter(float value = 1) { return torch::full({2, 3}, value).set_requires_grad(true); }
void GiveGradient(at::Tensor& parameter, float value) {
  parameter.mutable_grad() = torch::full({2, 3}, value);
}
// One that can be communicated where it is.
void GiveSharedGradient(at::Tensor& parameter) {
  parameter.mutable_grad() = torch::from_blob(
      *SharedPool().Allocate(24), {2, 3}, [](void* freed) { SharedPool().Free(freed); },
      torch::kFloat);
}
Floats Elements(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

// Threads: one. Owns: a bucket's memory for one slot, which lives as long as somebody keeps it.
class TensorSlotsTest : public ::testing::Test {
 protected:
  void Bind(Slot& slot) {
    slot.Bind(bucket_->data(), at::kCPU, bucket_);
    bucket_->assign(6, -1);
  }

  const std::shared_ptr<Floats> bucket_ = std::make_shared<Floats>(6);
};

TEST_F(TensorSlotsTest, AGradientIsCopiedOnceAndLiesInTheBucketAfterThat) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  GiveGradient(parameter, 2);
  EXPECT_EQ(*slot.Place(), bucket_->data());
  EXPECT_THAT(*bucket_, Each(2));
  EXPECT_EQ(parameter.grad().data_ptr(), bucket_->data());
  EXPECT_EQ(slot.copied_bytes(), 24u);
  EXPECT_EQ(*slot.Place(), bucket_->data());
  EXPECT_EQ(slot.copied_bytes(), 24u) << "copied again";
}

TEST_F(TensorSlotsTest, AResultIsTheGradient) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  EXPECT_FALSE(slot.HoldsResult());
  bucket_->assign(6, 5);  // the round
  slot.is_dirty = true;
  slot.Merge({}, /*used_by_any=*/true);
  EXPECT_THAT(Elements(parameter.grad()), Each(5));
  EXPECT_TRUE(slot.HoldsResult());
  EXPECT_FALSE(slot.is_dirty);
}

// A hook of the user's has done so while the round was under way.
TEST_F(TensorSlotsTest, AnotherTensorInGradGetsTheResultByACopy) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  GiveGradient(parameter, 7);
  const at::Tensor others = parameter.grad();
  bucket_->assign(6, 5);
  slot.Merge({}, true);
  EXPECT_THAT(Elements(others), Each(5));
  EXPECT_NE(others.data_ptr(), bucket_->data());
}

TEST_F(TensorSlotsTest, AGradientThatIsKeptByTheUserKeepsItsValues) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  slot.Merge({}, true);
  const at::Tensor kept = parameter.grad();
  GiveGradient(parameter, 3);  // zero_grad(set_to_none=True), and the next backward pass
  EXPECT_EQ(*slot.Place(), bucket_->data());
  EXPECT_THAT(*bucket_, Each(3));
  EXPECT_THAT(Elements(kept), Each(2)) << "the next round writes where the user's tensor lies";
}

TEST_F(TensorSlotsTest, WhatThisRankHasNotUsedCountsAsZerosAndIsPutBackWhereNoRankHas) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  EXPECT_EQ(*slot.PlaceUnused(), bucket_->data());
  EXPECT_THAT(*bucket_, Each(0));
  slot.Merge({}, /*used_by_any=*/false);
  EXPECT_FALSE(parameter.grad().defined());
  // One that was there before counts, and stays what it was.
  GiveGradient(parameter, 4);
  ASSERT_TRUE(slot.PlaceUnused().ok());
  EXPECT_THAT(*bucket_, Each(4));
  bucket_->assign(6, 8);
  slot.Merge({}, /*used_by_any=*/false);
  EXPECT_THAT(Elements(parameter.grad()), Each(4));
  // The same of one that lies in the bucket.
  ASSERT_TRUE(slot.Place().ok());
  slot.Merge({}, true);
  ASSERT_TRUE(slot.PlaceUnused().ok());
  bucket_->assign(6, 8);
  slot.Merge({}, false);
  EXPECT_EQ(parameter.grad().data_ptr(), bucket_->data());
  EXPECT_THAT(Elements(parameter.grad()), Each(4));
}

TEST_F(TensorSlotsTest, AnotherRanksGradientArrivesWhereThisRankHasNone) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  ASSERT_TRUE(slot.PlaceUnused().ok());
  bucket_->assign(6, 9);
  slot.Merge({}, /*used_by_any=*/true);
  ASSERT_TRUE(parameter.grad().defined());
  EXPECT_THAT(Elements(parameter.grad()), Each(9));
}

TEST_F(TensorSlotsTest, ASegmentsGradientStaysInSharedMemory) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  slot.Bind(nullptr, at::kCPU, nullptr);
  GiveSharedGradient(parameter);
  EXPECT_EQ(*slot.Place(), parameter.grad().data_ptr());
  EXPECT_EQ(slot.copied_bytes(), 0u);
  slot.Merge({}, true);
  // One elsewhere is copied to where peers reach it.
  GiveGradient(parameter, 2);
  void* const place = *slot.Place();
  EXPECT_NE(Locate(place, 24).region, kPrivateRegion);
  EXPECT_THAT(Elements(parameter.grad()), Each(2));
}

// Its memory may be another tensor's by then.
TEST_F(TensorSlotsTest, AGradientThatHasStayedAndIsGivenOtherMemoryMeanwhileIsAnError) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("fc.weight", parameter);
  slot.Bind(nullptr, at::kCPU, nullptr);
  GiveSharedGradient(parameter);
  ASSERT_TRUE(slot.Place().ok());
  Floats other(6);
  parameter.grad().storage().set_data_ptr_noswap(c10::DataPtr(other.data(), at::kCPU));
  EXPECT_THAT(std::string(slot.CheckMerge().message()),
              HasSubstr("'fc.weight' was given other memory while it was communicated"));
}

TEST_F(TensorSlotsTest, AGradientThatCannotTravelIsNamed) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("embedding.weight", parameter);
  Bind(slot);
  parameter.mutable_grad() = torch::zeros({2, 3}).to_sparse();
  EXPECT_THAT(slot.Place().status().ToString(), HasSubstr("'embedding.weight' has a sparse"));
}

TEST_F(TensorSlotsTest, AReleasedGradientHasMemoryOfItsOwn) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  slot.Release();
  bucket_->assign(6, 100);
  EXPECT_THAT(Elements(parameter.grad()), Each(2));
  EXPECT_EQ(bucket_.use_count(), 2) << "who has noted the address must find it mapped";
}

// g of the moment m: beta m + (1 - beta) g travels, and the gradient becomes what makes the mean of
// that.
TEST_F(TensorSlotsTest, AMomentumsRoundGivesTheMeanGradient) {
  at::Tensor parameter = Parameter();
  MomentumSlot slot("w", parameter, torch::full({2, 3}, 8.0F), 0.75);
  Bind(slot);
  GiveGradient(parameter, 4);
  ASSERT_TRUE(slot.Place().ok());
  EXPECT_THAT(*bucket_, Each(7));  // 0.75 * 8 + 0.25 * 4
  bucket_->assign(6, 9);           // with a rank whose gradient is 20: 11
  slot.Merge({}, true);
  EXPECT_THAT(Elements(parameter.grad()), Each(12));
  ASSERT_TRUE(slot.PlaceUnused().ok());
  bucket_->assign(6, 100);
  slot.Merge({}, false);
  EXPECT_THAT(Elements(parameter.grad()), Each(12)) << "no rank used it";
}

TEST_F(TensorSlotsTest, AMomentumWithoutAGradientCountsAsOneOfZero) {
  at::Tensor parameter = Parameter();
  MomentumSlot slot("w", parameter, torch::full({2, 3}, 8.0F), 0.75);
  Bind(slot);
  ASSERT_TRUE(slot.PlaceUnused().ok());
  EXPECT_THAT(*bucket_, Each(6));
}

TEST_F(TensorSlotsTest, AWeightTakesItsShareOfTheResult) {
  struct Case {
    CommitRule rule;
    float result;
  };
  for (const Case& each : {Case{{.kept = 0, .taken = 1}, 10}, Case{{.kept = 1, .taken = 0.5}, 9},
                           Case{{.kept = 0.5, .taken = 0.5}, 7}}) {
    const at::Tensor parameter = Parameter(4);
    WeightSlot slot("w", parameter);
    Bind(slot);
    ASSERT_TRUE(slot.Place().ok());
    EXPECT_THAT(*bucket_, Each(4));
    bucket_->assign(6, 10);
    const auto version = parameter._version();
    slot.Merge(each.rule, true);
    EXPECT_THAT(Elements(parameter), Each(each.result));
    EXPECT_GT(parameter._version(), version) << "a graph made before would not notice";
  }
}

TEST_F(TensorSlotsTest, TheOrderOfElementsIsThatOfTheParametersMemory) {
  const at::Tensor parameter = torch::arange(6, torch::kFloat).reshape({2, 3}).t();
  WeightSlot slot("w", parameter);
  Bind(slot);
  ASSERT_TRUE(slot.Place().ok());
  EXPECT_THAT(*bucket_, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(TensorSlotsTest, AParameterThatIsAnotherOneIsNoticed) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bind(slot);
  EXPECT_EQ(slot.Change(), "");
  const at::Tensor before = parameter.detach();
  parameter.set_data(torch::ones({2, 3}, torch::kDouble));
  EXPECT_EQ(slot.Change(), "dtype was Float, is Double");
  parameter.set_data(torch::ones({3, 3}));
  EXPECT_EQ(slot.Change(), "its shape changed");
  parameter.set_data(before);
  EXPECT_EQ(slot.Change(), "");
}

TEST_F(TensorSlotsTest, AWriteToTheParameterChangesItsFingerprint) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  slot.RememberVersion();
  const uint64_t counted = slot.Fingerprint(false);
  const uint64_t looked = slot.Fingerprint(true);
  EXPECT_FALSE(slot.WasWritten());
  parameter.data().fill_(5);  // counts no version
  EXPECT_EQ(slot.Fingerprint(false), counted);
  EXPECT_NE(slot.Fingerprint(true), looked);
  EXPECT_FALSE(slot.WasWritten());
  {
    const torch::NoGradGuard no_grad;
    parameter.fill_(6);
  }
  EXPECT_NE(slot.Fingerprint(false), counted);
  EXPECT_TRUE(slot.WasWritten());
}

TEST_F(TensorSlotsTest, ItsHookIsToldWhetherAGradientHasArrived) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  std::vector<bool> arrived;
  slot.Hook([&arrived](bool has) { arrived.push_back(has); });
  (parameter * 2).sum().backward();
  EXPECT_THAT(arrived, ElementsAre(true));
  EXPECT_THAT(Elements(parameter.grad()), Each(2)) << "the hook runs after the accumulation";
  slot.Unhook();
  (parameter * 2).sum().backward();
  EXPECT_EQ(arrived.size(), 1u);
}

}  // namespace
}  // namespace pelton::torch_bindings
