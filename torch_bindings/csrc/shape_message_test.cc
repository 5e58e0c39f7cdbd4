#include "torch_bindings/csrc/shape_message.h"

#include <torch/types.h>

#include <cstring>

#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

TEST(ShapeMessageTest, SaysTypeAndShape) {
  const ShapeMessage message = ShapeMessage::Of(torch::zeros({2, 3}, torch::kHalf));
  EXPECT_EQ(message.ToString(), "Half [2, 3]");
  EXPECT_EQ(message.bytes(), 12u);
  EXPECT_EQ(message.first(), 2);
  EXPECT_EQ(ShapeMessage::Of(torch::zeros({0, 3})).bytes(), 0u);
}

TEST(ShapeMessageTest, ArrivesAsItWasSent) {
  ShapeMessage sent = ShapeMessage::Of(torch::zeros({7, 1, 5}, torch::kInt64));
  sent.name = 0x123456789abcdef0;
  sent.data_tag = -3;
  ShapeMessage received;
  const Tensor from = sent.flat();
  const Tensor into = received.flat();
  ASSERT_EQ(from.count * SizeOf(from.dtype), sizeof(ShapeMessage));
  std::memcpy(into.data, from.data, sizeof(ShapeMessage));
  EXPECT_TRUE(received.FitsTo(sent));
  EXPECT_EQ(received.ToString(), "Long [7, 1, 5]");
  EXPECT_EQ(received.data_tag, -3);
}

TEST(ShapeMessageTest, OnlyTheFirstDimensionMayDiffer) {
  const ShapeMessage mine = ShapeMessage::Of(torch::zeros({2, 3}));
  EXPECT_TRUE(mine.FitsTo(ShapeMessage::Of(torch::zeros({5, 3}))));
  EXPECT_FALSE(mine.FitsTo(ShapeMessage::Of(torch::zeros({2, 4}))));
  EXPECT_FALSE(mine.FitsTo(ShapeMessage::Of(torch::zeros({2}))));
  EXPECT_FALSE(mine.FitsTo(ShapeMessage::Of(torch::zeros({2, 3, 1}))));
  EXPECT_FALSE(ShapeMessage::Of(torch::zeros({2, 0})).FitsTo(ShapeMessage::Of(torch::zeros({2}))));
  EXPECT_FALSE(mine.FitsTo(ShapeMessage::Of(torch::zeros({2, 3}, torch::kDouble))));
  ShapeMessage named = mine;
  named.name = 1;
  EXPECT_FALSE(mine.FitsTo(named));
}

TEST(ShapeMessageTest, ADifferenceNamesBothRanks) {
  const ShapeMessage mine = ShapeMessage::Of(torch::zeros({2, 3}));
  ShapeMessage theirs = ShapeMessage::Of(torch::zeros({2}));
  EXPECT_EQ(
      DifferenceOf(mine, 0, theirs, 3),
      "tensor: is Float [2, 3] on rank 0 and Float [2] on rank 3; all but the first dimension "
      "must be the same");
  theirs.name = 1;
  EXPECT_EQ(DifferenceOf(mine, 0, theirs, 3),
            "name: ranks 0 and 3 call it by different names in this place; all must call alike");
}

TEST(ShapeMessageTest, GatheredTensorsHaveTheTypeAndAllDimensionsButTheFirst) {
  const at::Tensor like = torch::zeros({2, 3}, torch::kDouble).set_requires_grad(true);
  const at::Tensor gathered = EmptyGathered(like, 10);
  EXPECT_EQ(gathered.sizes(), at::IntArrayRef({10, 3}));
  EXPECT_EQ(gathered.scalar_type(), at::kDouble);
  EXPECT_FALSE(gathered.requires_grad());
}

TEST(ShapeMessageTest, PartsLieInTheTensorsBytes) {
  const at::Tensor tensor = torch::zeros({4}, torch::kInt64);
  const Tensor bytes = BytesOf(tensor);
  EXPECT_EQ(bytes.count, 32u);
  const Tensor part = PartOf(bytes, 8, 16);
  std::memset(part.data, 0xff, part.count);
  EXPECT_TRUE(torch::equal(tensor, torch::tensor({0, -1, -1, 0}, torch::kInt64)));
}

}  // namespace
}  // namespace pelton::torch_bindings
