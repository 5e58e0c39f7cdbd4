#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/pipeline/operation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

TEST(CompletionTableTest, AnOperationThatTakesLongStopsNoneThatComesLater) {
  CompletionTable table;
  const CompletionTable::Entry first = table.Begin();
  for (size_t i = 0; i < 10 * CompletionTable::kPlaces; ++i) {
    ASSERT_TRUE(table.has_room());
    const CompletionTable::Entry next = table.Begin();
    EXPECT_NE(next.place, first.place);
    EXPECT_FALSE(table.Query(next.completion).done);
    table.End(next.completion.ticket, absl::OkStatus());
  }
  EXPECT_FALSE(table.Query(first.completion).done);
  EXPECT_EQ(table.PlaceOf(first.completion.ticket), first.place);
  table.End(first.completion.ticket, absl::OkStatus());
  EXPECT_TRUE(table.Query(first.completion).done);
}

TEST(CompletionTableTest, AnswersForEveryTicketEver) {
  CompletionTable table;
  for (uint64_t ticket = 1; ticket <= 1000; ++ticket) {
    table.Begin();
    const bool fails = ticket == 7;
    table.End(ticket, fails ? absl::InvalidArgumentError("differs") : absl::OkStatus());
  }
  EXPECT_EQ(table.Query({1}).status, absl::OkStatus());
  EXPECT_EQ(table.Query({7}).status, absl::InvalidArgumentError("differs"));
  EXPECT_EQ(table.Query({1000}).status, absl::OkStatus());
  for (const uint64_t ticket : {uint64_t{0}, uint64_t{1001}, ~uint64_t{0}}) {
    const OperationRunner::State state = table.Query({ticket});
    EXPECT_TRUE(state.done);
    EXPECT_THAT(std::string(state.status.message()),
                HasSubstr(absl::StrCat("ticket ", ticket, " is none")));
  }
}

TEST(CompletionTableTest, NeverSaysThatAFailureItForgotWasASuccess) {
  CompletionTable table;
  const uint64_t count = CompletionTable::kMaxFailures + 2;
  for (uint64_t ticket = 1; ticket <= count; ++ticket) {
    table.Begin();
    table.End(ticket, absl::InternalError(absl::StrCat(ticket)));
  }
  for (const uint64_t ticket : {1, 2}) {
    EXPECT_THAT(std::string(table.Query({ticket}).status.message()), HasSubstr("not known"));
  }
  EXPECT_EQ(table.Query({3}).status, absl::InternalError("3"));
  EXPECT_EQ(table.Query({count}).status, absl::InternalError(absl::StrCat(count)));
}

TEST(CompletionTableTest, IsFullWithAllPlacesInUse) {
  CompletionTable table;
  std::set<size_t> places;
  while (table.has_room()) places.insert(table.Begin().place);
  EXPECT_EQ(places.size(), CompletionTable::kPlaces);
  EXPECT_EQ(*places.rbegin(), CompletionTable::kPlaces - 1);
  table.EndAll(absl::AbortedError("over"));
  EXPECT_EQ(table.in_flight(), 0u);
  EXPECT_EQ(table.Query({1}).status, absl::AbortedError("over"));
  EXPECT_EQ(table.Query({CompletionTable::kPlaces}).status, absl::AbortedError("over"));
}

// Against a map, with operations that end in any order, some of them very late.
TEST(CompletionTableTest, IsRightForAnyOrderOfEnds) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    CompletionTable table;
    std::map<uint64_t, size_t> in_flight;  // place by ticket
    for (int step = 0; step < 20'000; ++step) {
      if (table.has_room() && random() % 2 == 0) {
        const CompletionTable::Entry entry = table.Begin();
        in_flight[entry.completion.ticket] = entry.place;
      } else if (!in_flight.empty()) {
        // Mostly the newest: the oldest ones stay for long.
        auto ends = std::prev(in_flight.end());
        if (random() % 4 == 0) std::advance(ends = in_flight.begin(), random() % in_flight.size());
        table.End(ends->first, absl::OkStatus());
        in_flight.erase(ends);
      }
      ASSERT_EQ(table.in_flight(), in_flight.size());
      ASSERT_EQ(table.oldest(), in_flight.empty() ? 0 : in_flight.begin()->first);
      const uint64_t ticket = random() % (table.launched() + 1);
      const auto found = in_flight.find(ticket);
      ASSERT_EQ(table.PlaceOf(ticket),
                found == in_flight.end() ? CompletionTable::kNoPlace : found->second);
      if (ticket == 0) continue;
      ASSERT_EQ(table.Query({ticket}).done, found == in_flight.end());
    }
    std::set<size_t> places;
    for (const auto& [ticket, place] : in_flight) places.insert(place);
    EXPECT_EQ(places.size(), in_flight.size());
  }
}

}  // namespace
}  // namespace pelton
