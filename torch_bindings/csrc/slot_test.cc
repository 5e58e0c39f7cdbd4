// What a slot knows of its parameter, and who keeps the memory alive that it hands out.
#include "torch_bindings/csrc/slot.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/shared_allocator.h"
#include "torch_bindings/csrc/tensor_slots.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::ElementsAre;
using Floats = std::vector<float>;

at::Tensor Parameter() { return torch::ones({2, 3}).set_requires_grad(true); }
void GiveGradient(const at::Tensor& parameter, float value) {
  parameter.mutable_grad() = torch::full({2, 3}, value);
}
bool Holds(const at::Tensor& tensor, float value) {
  return tensor.defined() && tensor.equal(torch::full_like(tensor, value));
}

// A bucket of one slot. Threads: one. Owns: nothing of the bucket, which its slot keeps.
struct Bucket {
  explicit Bucket(Slot& slot) {
    auto memory = std::make_shared<Floats>(6, -1.0F);
    data = memory->data();
    living = memory;
    slot.Bind(data, at::kCPU, std::move(memory));
  }
  void Fill(float value) { std::fill_n(data, 6, value); }

  float* data;
  std::weak_ptr<Floats> living;
};

// A hook of a user's, which runs within each accumulation.
// Threads: autograd's. Owns: nothing.
class NoHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable&) override {}
};
void AddHookOfUser(const at::Tensor& parameter) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<NoHook>());
}

// Its backward makes no gradient.
class Unused : public torch::autograd::Function<Unused> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST(SlotTest, ABucketLivesAsLongAsAGradientThatLiesInIt) {
  const at::Tensor parameter = Parameter();
  auto slot = std::make_unique<GradientSlot>("w", parameter);
  const Bucket bucket(*slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot->Place().ok());
  at::Tensor kept = parameter.grad().view({6}).slice(0, 0, 2);
  parameter.mutable_grad() = at::Tensor();
  slot.reset();
  EXPECT_FALSE(bucket.living.expired()) << "a user still has a part of it";
  EXPECT_TRUE(Holds(kept, 2));
  kept = at::Tensor();
  EXPECT_TRUE(bucket.living.expired());
}

TEST(SlotTest, WhatUsersKeepMovesOutBeforeTheNextRoundWrites) {
  const at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bucket bucket(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  const at::Tensor kept = parameter.grad();
  const at::Tensor part = kept.t().select(0, 1);
  GiveGradient(parameter, 3);
  EXPECT_EQ(*slot.Place(), bucket.data);
  bucket.Fill(5);
  EXPECT_TRUE(Holds(kept, 2));
  EXPECT_TRUE(Holds(part, 2));
  part.fill_(9);
  EXPECT_EQ(kept[0][1].item<float>(), 9) << "a view is a view of the same tensor still";
  EXPECT_TRUE(Holds(parameter.grad(), 5));
}

TEST(SlotTest, ASegmentThatAUserKeepsIsTheirsAndTheSlotGetsAnother) {
  const at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  slot.Bind(nullptr, at::kCPU, nullptr);
  GiveGradient(parameter, 2);
  void* const first = *slot.Place();
  const at::Tensor kept = parameter.grad();
  GiveGradient(parameter, 3);
  void* const second = *slot.Place();
  EXPECT_NE(first, second);
  EXPECT_NE(Locate(second, 24).region, kPrivateRegion);
  EXPECT_EQ(kept.data_ptr(), first);
  EXPECT_TRUE(Holds(kept, 2));
}

// As share_memory_() does: all tensors of the storage lie elsewhere, and what it had is given back.
void MoveStorageOf(const at::Tensor& tensor) {
  const at::Tensor copy = tensor.clone();
  tensor.storage().set_data_ptr_noswap(c10::DataPtr(
      copy.data_ptr(), new at::Tensor(copy),
      [](void* kept) { delete static_cast<at::Tensor*>(kept); }, copy.device()));
}

TEST(SlotTest, AGradientWhoseStorageIsGivenOtherMemoryIsCopiedInAgain) {
  for (const bool is_segment : {false, true}) {
    const at::Tensor parameter = Parameter();
    GradientSlot slot("w", parameter);
    const Bucket bucket(slot);
    if (is_segment) slot.Bind(nullptr, at::kCPU, nullptr);
    GiveGradient(parameter, 2);
    void* const place = *slot.Place();
    slot.Merge({}, true);
    MoveStorageOf(parameter.grad());
    EXPECT_NE(parameter.grad().data_ptr(), place);
    // What accumulates there is what goes out, and the result comes back there.
    parameter.grad().fill_(7);
    float* const next = static_cast<float*>(*slot.Place());
    EXPECT_EQ(next, place);
    EXPECT_EQ(*next, 7);
    std::fill_n(next, 6, 5.0F);
    slot.Merge({}, true);
    EXPECT_TRUE(Holds(parameter.grad(), 5));
    slot.Release();
    EXPECT_TRUE(Holds(parameter.grad(), 5));
    parameter.mutable_grad() = at::Tensor();
    if (is_segment) {
      EXPECT_EQ(*SharedPool().Allocate(24), place) << "the block was not given back";
      SharedPool().Free(place);
    } else {
      EXPECT_TRUE(bucket.living.expired());
    }
  }
}

TEST(SlotTest, AResultArrivesAlthoughTheStorageIsGivenOtherMemoryMeanwhile) {
  const at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  Bucket bucket(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  MoveStorageOf(parameter.grad());
  bucket.Fill(5);
  slot.Merge({}, true);
  EXPECT_TRUE(Holds(parameter.grad(), 5));
}

TEST(SlotTest, AReleasedSlotLetsItsBucketGo) {
  GradientSlot slot("w", Parameter());
  const Bucket bucket(slot);
  EXPECT_FALSE(bucket.living.expired());
  slot.Release();
  EXPECT_TRUE(bucket.living.expired());
}

TEST(SlotTest, AGradientMovesAlongToAnotherBucket) {
  const at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  const Bucket before(slot);
  GiveGradient(parameter, 2);
  ASSERT_TRUE(slot.Place().ok());
  slot.Release();
  const Bucket after(slot);
  slot.Adopt();
  EXPECT_EQ(parameter.grad().data_ptr(), after.data);
  EXPECT_TRUE(Holds(parameter.grad(), 2));
  EXPECT_TRUE(slot.HoldsResult());
  EXPECT_TRUE(before.living.expired());
}

TEST(SlotTest, AGradientOnAnotherDeviceIsRefusedByName) {
  const at::Tensor parameter = Parameter();
  GradientSlot slot("fc.weight", parameter);
  const Bucket bucket(slot);
  parameter.mutable_grad() = torch::empty({2, 3}, at::kMeta);
  EXPECT_EQ(slot.Place().status(),
            absl::InvalidArgumentError(
                "the gradient of parameter 'fc.weight' is on meta, the parameter on cpu"));
}

TEST(SlotTest, AHookThatACastHasLostIsNoticed) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  slot.Hook([](bool) {});
  EXPECT_EQ(slot.Change(), "");
  parameter.set_data(torch::ones({2, 3}, at::kDouble));
  parameter.set_data(torch::ones({2, 3}));
  EXPECT_EQ(slot.Change(), "its gradient accumulator was replaced");
}

TEST(SlotTest, AFrozenParameterIsTheSame) {
  at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  slot.Hook([](bool) {});
  parameter.set_requires_grad(false);
  EXPECT_EQ(slot.Change(), "");
  EXPECT_FALSE(slot.requires_grad());
  parameter.set_requires_grad(true);
  EXPECT_EQ(slot.Change(), "");
}

TEST(SlotTest, AnUndefinedGradientHasNotArrived) {
  const at::Tensor parameter = Parameter();
  GradientSlot slot("w", parameter);
  std::vector<bool> arrived;
  slot.Hook([&arrived](bool has) { arrived.push_back(has); });
  Unused::apply(parameter).sum().backward();
  EXPECT_THAT(arrived, ElementsAre(false));
  parameter.sum().backward();
  EXPECT_THAT(arrived, ElementsAre(false, true));
}

TEST(SlotTest, ABackwardOfSomeGradientsWantsThoseOnly) {
  const at::Tensor asked = Parameter();
  const at::Tensor other = Parameter();
  GradientSlot first("asked", asked);
  GradientSlot second("other", other);
  std::vector<bool> wanted;
  first.Hook([&](bool) { wanted = {first.IsWanted(), second.IsWanted()}; });
  second.Hook([](bool) { ADD_FAILURE() << "nobody asked for it"; });
  EXPECT_FALSE(first.IsWanted()) << "no backward runs";
  torch::autograd::backward({(asked * other).sum()}, {}, /*retain_graph=*/false,
                            /*create_graph=*/false, {asked});
  EXPECT_THAT(wanted, ElementsAre(true, false));
}

TEST(SlotTest, WhatAUsersHookMayWriteByDataIsLookedAt) {
  for (const int64_t count : {6, 1 << 16}) {
    const at::Tensor parameter = torch::ones({count}).set_requires_grad(true);
    GradientSlot slot("w", parameter);
    slot.RememberVersion();
    parameter.data().fill_(2);
    EXPECT_FALSE(slot.WasWritten()) << "without a hook nothing is looked at";
    AddHookOfUser(parameter);
    EXPECT_TRUE(slot.has_hooks_of_users());
    slot.RememberVersion();
    EXPECT_FALSE(slot.WasWritten());
    parameter.data().mul_(3);
    EXPECT_TRUE(slot.WasWritten()) << count;
  }
}

TEST(SlotTest, EveryElementOfASmallParameterIsLookedAt) {
  const at::Tensor parameter = torch::ones({1024}).set_requires_grad(true);
  AddHookOfUser(parameter);
  GradientSlot slot("w", parameter);
  for (const int64_t place : {0, 517, 1023}) {
    slot.RememberVersion();
    parameter.data()[place] = 7;
    EXPECT_TRUE(slot.WasWritten()) << place;
  }
}

TEST(SlotTest, ItsHookGoesWithIt) {
  const at::Tensor parameter = Parameter();
  const at::Tensor loss = parameter.sum();  // keeps the node that the hook is at
  int calls = 0;
  {
    GradientSlot slot("w", parameter);
    slot.Hook([&calls](bool) { ++calls; });
    parameter.sum().backward();
  }
  loss.backward();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace pelton::torch_bindings
