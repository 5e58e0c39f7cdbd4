// Arguments of a process group's calls: which are taken, and what those are told that are not.
#include "torch_bindings/csrc/c10d/rules.h"

#include <torch/types.h>

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_errors.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::HasSubstr;
using Torch = ::c10d::ReduceOp;

const Call& AnyCall() {
  static const auto* const call = new Call("reduce", Call::Use::kReduced);
  return *call;
}

TEST(RulesTest, EveryReductionHasItsOwn) {
  const std::vector<std::pair<Torch::RedOpType, ReduceOp>> pairs = {
      {Torch::SUM, ReduceOp::kSum},         {Torch::AVG, ReduceOp::kAvg},
      {Torch::PRODUCT, ReduceOp::kProduct}, {Torch::MIN, ReduceOp::kMin},
      {Torch::MAX, ReduceOp::kMax},         {Torch::BAND, ReduceOp::kBitAnd},
      {Torch::BOR, ReduceOp::kBitOr},       {Torch::BXOR, ReduceOp::kBitXor}};
  for (const auto& [theirs, ours] : pairs) EXPECT_EQ(OpOf(AnyCall(), Torch(theirs)), ours);
}

TEST(RulesTest, AReductionThatIsNoneIsRefused) {
  Torch op;
  op.op_ = Torch::PREMUL_SUM;
  EXPECT_EQ(ErrorOf([&] { OpOf(AnyCall(), op); }),
            "UNIMPLEMENTED: reduce: op: PREMUL_SUM is not offered; multiply first, then use SUM");
  op.op_ = Torch::UNUSED;
  EXPECT_THAT(ErrorOf([&] { OpOf(AnyCall(), op); }), HasSubstr("INVALID_ARGUMENT: reduce: op: "));
}

TEST(RulesTest, ARootIsARankOfTheGroup) {
  EXPECT_EQ(RootOf(AnyCall(), 0, 3), Rank(0));
  EXPECT_EQ(RootOf(AnyCall(), 2, 3), Rank(2));
  EXPECT_EQ(ErrorOf([] { RootOf(AnyCall(), 3, 3); }),
            "INVALID_ARGUMENT: reduce: root: 3 is not in [0, 3)");
  EXPECT_THAT(ErrorOf([] { RootOf(AnyCall(), -1, 3); }), HasSubstr("root: -1 is not in"));
  EXPECT_THAT(ErrorOf([] { RootOf(AnyCall(), int64_t{1} << 32, 3); }),
              HasSubstr("root: 4294967296 is not in"))
      << "cut to 32 bits it would be rank 0";
}

TEST(RulesTest, AListHasAsManyEntriesAsItsCallNeeds) {
  const std::vector<int> one = {7};
  EXPECT_EQ(&Only(AnyCall(), "inputs", one), &one.front());
  EXPECT_EQ(ErrorOf([] {
              Only(AnyCall(), "inputs", std::vector<int>{1, 2});
            }),
            "INVALID_ARGUMENT: reduce: inputs: has 2 entries instead of 1");
  EXPECT_THAT(ErrorOf([] { Only(AnyCall(), "inputs", std::vector<int>()); }),
              HasSubstr("inputs: has 0 entries"));
}

TEST(RulesTest, AWholeIsAllItsPartsOfTheSameType) {
  const auto error_of = [](const at::Tensor& whole, const at::Tensor& part) {
    return ErrorOf([&] { CheckWhole(AnyCall(), {"output", whole}, {"input", part}, 3); });
  };
  EXPECT_EQ(error_of(torch::zeros({3, 2}), torch::zeros({2})), "none");
  EXPECT_EQ(error_of(torch::zeros({0}), torch::zeros({5, 0})), "none");
  EXPECT_EQ(error_of(torch::zeros({5}), torch::zeros({2})),
            "INVALID_ARGUMENT: reduce: count: output has 5 elements, input has 2 of 3 ranks");
  EXPECT_EQ(error_of(torch::zeros({6}, at::kHalf), torch::zeros({2})),
            "INVALID_ARGUMENT: reduce: dtype: output is Half, input is Float");
}

TEST(RulesTest, OfOneLengthAreTensorsOfAsManyElements) {
  EXPECT_TRUE(AreEqual({}));
  EXPECT_TRUE(AreEqual({torch::zeros({2, 3}), torch::zeros({6})}));
  EXPECT_FALSE(AreEqual({torch::zeros({6}), torch::zeros({6}), torch::zeros({5})}));
}

}  // namespace
}  // namespace pelton::torch_bindings
