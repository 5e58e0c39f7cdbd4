#include "comm/topology/matching.h"

#include <numeric>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> All(size_t count) {
  std::vector<int32_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

void ExpectIsAMatching(const Matching& matching) {
  for (size_t place = 0; place < matching.size(); ++place) {
    ASSERT_GE(matching[place], 0);
    ASSERT_LT(static_cast<size_t>(matching[place]), matching.size());
    EXPECT_EQ(matching[static_cast<size_t>(matching[place])], static_cast<int32_t>(place));
  }
}

size_t SittingOut(const Matching& matching) {
  size_t count = 0;
  for (size_t place = 0; place < matching.size(); ++place) {
    count += matching[place] == static_cast<int32_t>(place);
  }
  return count;
}

TEST(MatchingTest, RandomPairsAllButOneOfAnOddNumber) {
  for (size_t count = 1; count <= 17; ++count) {
    std::set<Matching> seen;
    for (uint64_t seed = 0; seed < 50; ++seed) {
      const Matching matching = MatchAtRandom(All(count), count, seed);
      ExpectIsAMatching(matching);
      EXPECT_EQ(SittingOut(matching), count % 2);
      EXPECT_EQ(matching, MatchAtRandom(All(count), count, seed));
      seen.insert(matching);
    }
    EXPECT_GT(seen.size(), count > 5 ? 10u : 0u) << "the seed chooses";
  }
}

TEST(MatchingTest, WhoIsNotGivenSitsOut) {
  const Matching matching = MatchAtRandom({0, 2, 3, 5}, 6, 7);
  ExpectIsAMatching(matching);
  EXPECT_EQ(matching[1], 1);
  EXPECT_EQ(matching[4], 4);
  EXPECT_EQ(SittingOut(matching), 2u);
}

TEST(MatchingTest, PairsNeighboursInTheOrderOfTheirDistances) {
  const std::vector<absl::Duration> far = {absl::Milliseconds(40), absl::Milliseconds(1),
                                           absl::Milliseconds(41), absl::Milliseconds(2)};
  EXPECT_THAT(MatchAlong(far, 0), ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(MatchAlong(far, 1), ElementsAre(3, 1, 2, 0));
}

TEST(MatchingTest, EverybodyIsReachedAlongTheLine) {
  for (size_t count = 2; count <= 9; ++count) {
    std::vector<std::set<size_t>> heard_of(count);
    for (size_t place = 0; place < count; ++place) heard_of[place] = {place};
    const std::vector<absl::Duration> distances(count, absl::Milliseconds(1));
    for (uint64_t step = 0; step < count; ++step) {
      const Matching matching = MatchAlong(distances, step);
      ExpectIsAMatching(matching);
      const auto before = heard_of;
      for (size_t place = 0; place < count; ++place) {
        const auto& news = before[static_cast<size_t>(matching[place])];
        heard_of[place].insert(news.begin(), news.end());
      }
    }
    for (const std::set<size_t>& all : heard_of) EXPECT_EQ(all.size(), count);
  }
}

TEST(MatchingTest, PoliciesHaveNames) {
  for (absl::string_view name : {"random_matching", "latency_aware", "avoid_stragglers"}) {
    EXPECT_EQ(NameOf(*ParsePeerPolicy(name)), name);
  }
  EXPECT_THAT(ParsePeerPolicy("nearest").status().ToString(),
              HasSubstr("'nearest' is not one of: random_matching, latency_aware"));
}

}  // namespace
}  // namespace pelton
