#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "algorithms/codec/top_k_kernels.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

using Keys = std::vector<uint32_t>;

void ExpectLikeSorting(const Keys& keys, uint64_t rank) {
  Keys sorted = keys;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const uint32_t key = sorted[rank - 1];
  const auto larger = std::count_if(keys.begin(), keys.end(), [&](uint32_t k) { return k > key; });
  Keys scratch = keys;
  const KthLargestKey got = KthLargest(absl::MakeSpan(scratch), rank);
  EXPECT_EQ(got.key, key) << "rank " << rank << " of " << keys.size();
  EXPECT_EQ(got.equal, rank - larger) << "rank " << rank << " of " << keys.size();
}

TEST(KthLargestTest, IsWhatSortingGives) {
  const uint64_t seed = 20261122;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int repeat = 0; repeat < 300; ++repeat) {
    Keys keys(1 + random() % 3000);
    const uint64_t bits = random() % 32;  // few bits: many equal keys
    const auto offset = static_cast<uint32_t>(random()) >> 1;
    for (uint32_t& key : keys) key = (static_cast<uint32_t>(random()) >> 2 >> bits) + (offset >> 1);
    ExpectLikeSorting(keys, 1 + random() % keys.size());
    ExpectLikeSorting(keys, 1);
    ExpectLikeSorting(keys, keys.size());
  }
}

TEST(KthLargestTest, TakesKeysThatAreAllEqual) {
  for (const uint32_t key : {0u, 1u, 0x7F800000u, 0x7FFFFFFFu}) {
    ExpectLikeSorting(Keys(100, key), 37);
  }
}

// Each round of counting narrows the range although an outlier holds nearly all keys together.
TEST(KthLargestTest, TakesOutliersOfEveryMagnitude) {
  Keys keys;
  for (int bit = 0; bit < 31; ++bit) keys.push_back(1u << bit);
  keys.push_back(0);
  keys.push_back(0x7FFFFFFFu);
  for (uint64_t rank = 1; rank <= keys.size(); ++rank) ExpectLikeSorting(keys, rank);
}

}  // namespace
}  // namespace pelton::codec
