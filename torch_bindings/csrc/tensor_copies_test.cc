// What becomes of tensors that are copied beside training, and of their memory.
#include "torch_bindings/csrc/tensor_copies.h"

#include <torch/types.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }
at::Tensor Target(int64_t count) { return torch::full({count}, -1.0F); }

TEST(TensorCopiesTest, EachTensorGoesToItsPlaceOfTheTarget) {
  TensorCopies copies;
  const at::Tensor target = Target(6);
  copies.Begin({{torch::full({2}, 3.0F), 12}, {torch::full({1, 2}, 5.0F), 0}}, target);
  EXPECT_EQ(copies.Finish(Soon()), std::nullopt);
  EXPECT_TRUE(target.equal(torch::tensor({5.0F, 5.0F, -1.0F, 3.0F, 3.0F, -1.0F})));
}

TEST(TensorCopiesTest, APartOfATensorIsCopiedFromItsOwnFirstElementOn) {
  TensorCopies copies;
  const at::Tensor target = Target(2);
  copies.Begin({{torch::arange(6, at::kFloat).slice(0, 3, 5), 0}}, target);
  EXPECT_EQ(copies.Finish(Soon()), std::nullopt);
  EXPECT_TRUE(target.equal(torch::tensor({3.0F, 4.0F})));
}

TEST(TensorCopiesTest, ACopyThatIsNotWhatItsTensorWasIsFound) {
  TensorCopies copies;
  const at::Tensor target = Target(2000);
  copies.Begin({{torch::ones({1000}), 0}, {torch::ones({1000}), 4000}}, target);
  while (!copies.is_copied()) std::this_thread::yield();
  target[1000] = 9;  // as if its source had been written to before it was copied
  EXPECT_EQ(copies.Finish(Soon()), 1U);
}

TEST(TensorCopiesTest, MemoryThatATensorLetsGoOfIsCopiedStill) {
  TensorCopies copies;
  const at::Tensor target = Target(1000);
  at::Tensor source = torch::full({1000}, 3.0F);
  const float* const memory = source.const_data_ptr<float>();
  copies.Begin({{source, 0}}, target);
  const at::Tensor other = Target(1000);
  source.storage().set_data_ptr_noswap(c10::DataPtr(
      other.data_ptr(), nullptr, [](void*) {}, at::kCPU));
  source = at::Tensor();
  EXPECT_EQ(memory[999], 3) << "it is not freed";
  EXPECT_EQ(copies.Finish(Soon()), std::nullopt);
  EXPECT_TRUE(target.equal(torch::full({1000}, 3.0F)));
}

TEST(TensorCopiesTest, ATensorMayBeCopiedAgainAndBySeveral) {
  TensorCopies copies;
  TensorCopies others;
  const at::Tensor source = torch::ones({4});
  for (int i = 1; i < 3; ++i) {
    const at::Tensor target = Target(4);
    const at::Tensor other = Target(4);
    source.fill_(i);
    copies.Begin({{source, 0}}, target);
    others.Begin({{source, 0}}, other);
    EXPECT_EQ(copies.Finish(Soon()), std::nullopt);
    EXPECT_EQ(others.Finish(Soon()), std::nullopt);
    EXPECT_TRUE(target.equal(source));
    EXPECT_TRUE(other.equal(source));
    EXPECT_TRUE(TensorCopies::MayCopy(source));
  }
}

TEST(TensorCopiesTest, WhatIsAbandonedIsForgotten) {
  TensorCopies copies;
  at::Tensor target = Target(4);
  copies.Begin({{torch::ones({4}), 0}}, target);
  copies.Abandon();
  copies.Abandon();
  EXPECT_EQ(target.use_count(), 1);
}

TEST(TensorCopiesTest, OnlyMemoryOfPyTorchsOwnWithoutGapsIsCopied) {
  std::vector<float> foreign(4);
  EXPECT_TRUE(TensorCopies::MayCopy(torch::ones({4})));
  EXPECT_FALSE(TensorCopies::MayCopy(torch::from_blob(foreign.data(), {4}, at::kFloat)));
  EXPECT_FALSE(TensorCopies::MayCopy(torch::ones({2, 3}).t()));
  EXPECT_FALSE(TensorCopies::MayCopy(torch::ones({0})));
  EXPECT_FALSE(TensorCopies::MayCopy(torch::empty({4}, at::kMeta)));
  EXPECT_FALSE(TensorCopies::MayCopy(torch::ones({4}).to_sparse()));
}

TEST(TensorCopiesTest, WhatDoesNotFitIsRefusedByItsNumber) {
  TensorCopies copies;
  const auto error_of = [&copies](const TensorCopies::Parts& parts, const at::Tensor& target) {
    try {
      copies.Begin(parts, target);
    } catch (const StatusError& error) {
      return error.status().ToString();
    }
    return std::string("none");
  };
  const at::Tensor source = torch::ones({2});
  EXPECT_THAT(error_of({{source, 0}, {source, 12}}, Target(4)),
              HasSubstr("INVALID_ARGUMENT: copies: tensor 1 of 8 bytes at 12, in a target of 16"));
  EXPECT_THAT(error_of({{source, 20}}, Target(4)), HasSubstr("tensor 0 of 8 bytes at 20"));
  EXPECT_THAT(error_of({{source, 0}}, torch::zeros({2, 2}).t()), HasSubstr("without gaps"));
  EXPECT_EQ(error_of({{source, 8}}, Target(4)), "none");
}

}  // namespace
}  // namespace pelton::torch_bindings
