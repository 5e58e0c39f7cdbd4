#include <array>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/trace/trace.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

TEST(TraceNamesTest, KeepsEachNameOnceAtOneAddress) {
  TraceNames names;
  const std::string& first = names.Keep(std::string("first"));
  const std::string& second = names.Keep("second");
  EXPECT_EQ(first, "first");
  EXPECT_EQ(second, "second");
  EXPECT_EQ(&names.Keep("first"), &first);
  EXPECT_EQ(names.Keep(""), "");
}

TEST(TraceNamesTest, ANameTooManyIsOneOfTheFurther) {
  TraceNames names;
  std::set<std::string> kept;
  for (size_t i = 0; i < 2 * TraceNames::kCapacity; ++i) {
    const std::string name = absl::StrCat("name ", i);
    const std::string& copy = names.Keep(name);
    EXPECT_TRUE(copy == name || copy == TraceNames::kFurtherNames) << copy;
    kept.insert(copy);
  }
  EXPECT_EQ(kept.count(std::string(TraceNames::kFurtherNames)), 1u);
  // Nearly all places are taken, and the names that have one still find it.
  EXPECT_GT(kept.size(), TraceNames::kCapacity * 9 / 10);
  for (const std::string& name : kept) EXPECT_EQ(names.Keep(name), name);
}

TEST(TraceNamesTest, ThreadsThatMeetANameTogetherGetOneCopy) {
  constexpr size_t kThreads = 4;
  constexpr size_t kNames = 300;
  TraceNames names;
  std::array<std::vector<const std::string*>, kThreads> found;
  std::vector<std::thread> threads;
  for (std::vector<const std::string*>& mine : found) {
    threads.emplace_back([&names, &mine] {
      for (size_t i = 0; i < kNames; ++i) mine.push_back(&names.Keep(absl::StrCat("name ", i)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<const std::string*>& other : found) EXPECT_EQ(other, found[0]);
}

}  // namespace
}  // namespace pelton
