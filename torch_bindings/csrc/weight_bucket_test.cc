#include "torch_bindings/csrc/weight_bucket.h"

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Neither fills a multiple of 64 bytes. The clone, because a view holds the tensor that it is of.
std::vector<at::Tensor> TwoParameters() {
  return {torch::arange(6, torch::kFloat).reshape({2, 3}).clone(), torch::full({5}, 9.0F)};
}

std::string ErrorOf(const std::vector<at::Tensor>& parameters) {
  try {
    const WeightBucket bucket(parameters);
  } catch (const StatusError& error) {
    return error.what();
  }
  return "none";
}

TEST(WeightBucketTest, MovesParametersInAtAlignedPlacesWithZerosBetween) {
  const std::vector<at::Tensor> parameters = TwoParameters();
  WeightBucket bucket(parameters);

  const at::Tensor flat = bucket.Gather();

  EXPECT_EQ(parameters[0].const_data_ptr(), flat.const_data_ptr());
  EXPECT_EQ(parameters[1].const_data_ptr(), flat.slice(0, 16).const_data_ptr());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(flat.const_data_ptr()) % 64, 0U);
  EXPECT_EQ(flat.numel(), 32);
  EXPECT_TRUE(parameters[0].equal(TwoParameters()[0]));
  EXPECT_TRUE(parameters[1].equal(TwoParameters()[1]));
  EXPECT_EQ(flat.sum().item<float>(), 15.0F + 45.0F);
}

TEST(WeightBucketTest, BuffersChangePlacesAtEachAdoption) {
  const std::vector<at::Tensor> parameters = TwoParameters();
  WeightBucket bucket(parameters);
  const at::Tensor first = bucket.Gather();
  const at::Tensor second = bucket.target();
  second.fill_(1);

  bucket.Adopt();

  EXPECT_EQ(parameters[0].const_data_ptr(), second.const_data_ptr());
  EXPECT_TRUE(parameters[0].equal(torch::ones({2, 3})));
  EXPECT_TRUE(bucket.Gather().is_same(second));
  EXPECT_TRUE(bucket.target().is_same(first));

  first.fill_(2);
  bucket.Adopt();

  EXPECT_EQ(parameters[0].const_data_ptr(), first.const_data_ptr());
  EXPECT_TRUE(parameters[1].equal(torch::full({5}, 2.0F)));
}

TEST(WeightBucketTest, AReaderInTheMiddleOfAChangeSeesTheOldWeights) {
  const std::vector<at::Tensor> parameters = TwoParameters();
  WeightBucket bucket(parameters);
  const at::Tensor read = bucket.Gather();
  const at::Tensor before = read.clone();

  bucket.target().fill_(1);
  EXPECT_TRUE(read.equal(before));
  EXPECT_TRUE(parameters[0].equal(TwoParameters()[0]));

  bucket.Adopt();
  EXPECT_TRUE(read.equal(before));
}

TEST(WeightBucketTest, AViewSeesWhatIsAdoptedAndKeepsTheBuffersInTheirPlaces) {
  const std::vector<at::Tensor> parameters = TwoParameters();
  WeightBucket bucket(parameters);
  const at::Tensor target = bucket.target();
  {
    const at::Tensor view = parameters[0].view({6});
    target.fill_(1);

    bucket.Adopt();

    EXPECT_TRUE(view.equal(torch::ones({6})));
    EXPECT_EQ(view.const_data_ptr(), parameters[0].const_data_ptr());
    EXPECT_TRUE(parameters[1].equal(torch::ones({5})));
    EXPECT_TRUE(bucket.target().is_same(target));
  }
  bucket.Adopt();  // nobody holds the storage any more
  EXPECT_EQ(parameters[0].const_data_ptr(), target.const_data_ptr());
}

TEST(WeightBucketTest, WhatMayNotMoveIsCopiedInAndOut) {
  const at::Tensor whole = torch::arange(8, torch::kFloat);
  const std::vector<at::Tensor> parameters = {torch::full({3}, 4.0F), whole.slice(0, 2, 5)};
  const void* const place = parameters[1].const_data_ptr();
  WeightBucket bucket(parameters);
  whole.add_(10);

  EXPECT_TRUE(bucket.Gather().slice(0, 16, 19).equal(whole.slice(0, 2, 5)));
  bucket.target().fill_(1);
  bucket.Adopt();

  EXPECT_EQ(parameters[1].const_data_ptr(), place);
  EXPECT_TRUE(whole.slice(0, 2, 5).equal(torch::ones({3})));
  EXPECT_EQ(whole[1].item<float>(), 11.0F);
  EXPECT_EQ(whole[5].item<float>(), 15.0F);
}

TEST(WeightBucketTest, AdoptionIsAChangeThatAutogradSees) {
  const std::vector<at::Tensor> parameters = TwoParameters();
  WeightBucket bucket(parameters);
  const int64_t before = parameters[0]._version();

  bucket.Adopt();

  EXPECT_GT(parameters[0]._version(), before);
}

TEST(WeightBucketTest, ParametersOutliveTheBucket) {
  const std::vector<at::Tensor> parameters = TwoParameters();
  auto bucket = std::make_unique<WeightBucket>(parameters);
  bucket->target().fill_(1);
  bucket->Adopt();

  bucket.reset();

  EXPECT_TRUE(parameters[1].equal(torch::ones({5})));
}

TEST(WeightBucketTest, FitsUntilAParameterHasAnotherShapeOrType) {
  std::vector<at::Tensor> parameters = TwoParameters();
  const WeightBucket bucket(parameters);
  EXPECT_TRUE(bucket.Fits());

  parameters[1].set_data(torch::zeros({4}));
  EXPECT_FALSE(bucket.Fits());
  parameters[1].set_data(torch::zeros({5}, torch::kDouble));
  EXPECT_FALSE(bucket.Fits());
}

TEST(WeightBucketTest, RefusesAParameterOfAnotherTypeOrDevice) {
  EXPECT_THAT(ErrorOf({torch::zeros({2}), torch::zeros({2}, torch::kDouble)}),
              AllOf(HasSubstr("parameter 1"), HasSubstr("Double"), HasSubstr("Float"),
                    HasSubstr("make the optimizer anew")));
  EXPECT_THAT(
      ErrorOf({torch::zeros({2}, torch::kMeta)}),
      AllOf(HasSubstr("parameter 0"), HasSubstr("meta"), HasSubstr("to the CPU or to a GPU")));
}

}  // namespace
}  // namespace pelton::torch_bindings
