#include "torch_bindings/csrc/shared_allocator.h"

#include <torch/types.h>

#include "core/memory/region.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

constexpr int64_t kLarge = 1 << 15;  // elements; 128 KiB
constexpr size_t kLargeBytes = size_t{kLarge} * 4;

bool IsShared(const at::Tensor& tensor) {
  return Locate(tensor.data_ptr(), tensor.nbytes()).region != kPrivateRegion;
}
at::Tensor Large() { return torch::empty({kLarge}); }

// Threads: one. Owns: nothing; the process's allocator is as at first after each test.
class SharedAllocatorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(SharedAllocation::Serves(/*on_one_host=*/true)); }
  void TearDown() override { SharedAllocation::SetEnabled(std::nullopt); }
};

TEST_F(SharedAllocatorTest, ExpectedGradientsOfABackwardPassAreBornInSharedMemory) {
  const ExpectedGradient expected(kLargeBytes);
  EXPECT_FALSE(IsShared(Large())) << "no backward pass runs";
  SharedAllocation::Begin();
  EXPECT_TRUE(IsShared(Large()));
  EXPECT_FALSE(IsShared(torch::empty({kLarge * 2}))) << "no gradient has that size";
  SharedAllocation::End();
  EXPECT_FALSE(IsShared(Large()));
}

TEST_F(SharedAllocatorTest, PassesAreCounted) {
  const ExpectedGradient expected(kLargeBytes);
  SharedAllocation::Begin();
  SharedAllocation::Begin();
  SharedAllocation::End();
  EXPECT_TRUE(IsShared(Large()));
  SharedAllocation::End();
  SharedAllocation::End();  // one too many
  SharedAllocation::Begin();
  EXPECT_TRUE(IsShared(Large()));
  SharedAllocation::End();
}

TEST_F(SharedAllocatorTest, ASizeIsExpectedUntilNobodyExpectsIt) {
  SharedAllocation::Begin();
  {
    const ExpectedGradient first(kLargeBytes);
    { const ExpectedGradient second(kLargeBytes); }
    EXPECT_TRUE(IsShared(Large()));
  }
  EXPECT_FALSE(IsShared(Large()));
  SharedAllocation::End();
}

TEST_F(SharedAllocatorTest, SmallBlocksStayWithTorch) {
  const int64_t small = (int64_t{64} << 10) / 4 - 1;
  const ExpectedGradient expected(static_cast<size_t>(small) * 4);
  SharedAllocation::Begin();
  EXPECT_FALSE(IsShared(torch::empty({small})));
  SharedAllocation::End();
}

TEST_F(SharedAllocatorTest, AllOfAScopeAreSharedWhateverTheirSize) {
  SharedAllocation::BeginAll();
  const at::Tensor shared = torch::empty({kLarge * 2});
  SharedAllocation::EndAll();
  EXPECT_TRUE(IsShared(shared));
  EXPECT_FALSE(IsShared(torch::empty({kLarge * 2})));
}

TEST_F(SharedAllocatorTest, AFreedBlockServesTheNextGradientOfItsSize) {
  const ExpectedGradient expected(kLargeBytes);
  SharedAllocation::Begin();
  const void* const before = Large().data_ptr();
  EXPECT_EQ(Large().data_ptr(), before);
  SharedAllocation::End();
}

TEST_F(SharedAllocatorTest, ServesAsTheUserSays) {
  EXPECT_FALSE(SharedAllocation::Serves(/*on_one_host=*/false));
  SharedAllocation::SetEnabled(true);
  EXPECT_TRUE(SharedAllocation::Serves(false));
  SharedAllocation::SetEnabled(false);
  EXPECT_FALSE(SharedAllocation::Serves(true));
  const ExpectedGradient expected(kLargeBytes);
  SharedAllocation::Begin();
  EXPECT_FALSE(IsShared(Large()));
}

}  // namespace
}  // namespace pelton::torch_bindings
