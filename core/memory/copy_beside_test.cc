#include "core/memory/copy_beside.h"

#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr size_t kSizes[] = {5, 64, 1000, (size_t{1} << 20) + 3, size_t{3} << 20};

absl::Time Later() { return Clock::Real().Now() + absl::Seconds(60); }

// Sources of all sizes, each byte another one, and room for their copies.
// Threads: one. Owns: both.
class Memory {
 public:
  Memory() {
    for (const size_t size_bytes : kSizes) {
      sources_.emplace_back(size_bytes);
      copies_.emplace_back(size_bytes);
      unsigned number = static_cast<unsigned>(size_bytes);
      for (std::byte& byte : sources_.back()) byte = static_cast<std::byte>(number += 37);
    }
  }

  std::vector<CopyBeside::Part> parts() {
    std::vector<CopyBeside::Part> parts;
    for (size_t i = 0; i < sources_.size(); ++i) {
      parts.push_back({sources_[i].data(), copies_[i].data(), sources_[i].size()});
    }
    return parts;
  }
  std::vector<std::byte>& source(size_t i) { return sources_[i]; }
  bool is_copied() const { return sources_ == copies_; }
  void Change() {
    for (auto& source : sources_) source.front() ^= std::byte{1};
  }

 private:
  std::vector<std::vector<std::byte>> sources_;
  std::vector<std::vector<std::byte>> copies_;
};

TEST(CopyBesideTest, CopiesEveryByteAgainAndAgain) {
  CopyBeside copies;
  EXPECT_TRUE(copies.is_copied()) << "nothing was begun";
  Memory memory;
  for (int i = 0; i < 50; ++i) {
    memory.Change();
    ASSERT_TRUE(copies.Begin(memory.parts()).ok());
    ASSERT_TRUE(copies.Wait(Later()).ok());
    EXPECT_TRUE(copies.is_copied());
    EXPECT_EQ(copies.FindChanged(), std::nullopt);
    ASSERT_TRUE(memory.is_copied()) << i;
  }
}

TEST(CopyBesideTest, ItsThreadNeedsNobodyWhoWaits) {
  CopyBeside copies;
  Memory memory;
  ASSERT_TRUE(copies.Begin(memory.parts()).ok());
  const absl::Time end = Later();
  while (!copies.is_copied()) ASSERT_LT(Clock::Real().Now(), end);
  EXPECT_TRUE(memory.is_copied());
}

TEST(CopyBesideTest, WhoWaitsPastTheDeadlineHasCopiedAllTheSame) {
  CopyBeside copies;
  Memory memory;
  ASSERT_TRUE(copies.Begin(memory.parts()).ok());
  // Pieces are left to nobody; at most the one that the thread copies is waited for.
  if (!copies.Wait(absl::InfinitePast()).ok()) {
    ASSERT_TRUE(copies.Wait(Later()).ok());
  }
  EXPECT_TRUE(memory.is_copied());
}

// As if the change had come before a piece was copied: what is looked at is the copy.
TEST(CopyBesideTest, ACopyThatIsNotWhatItsSourceWasIsFound) {
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    CopyBeside copies;
    Memory memory;
    std::vector<CopyBeside::Part> parts = memory.parts();
    ASSERT_TRUE(copies.Begin(parts).ok());
    ASSERT_TRUE(copies.Wait(Later()).ok());
    parts[i].target[parts[i].size_bytes - 1] ^= std::byte{1};
    EXPECT_EQ(copies.FindChanged(), i);
  }
}

TEST(CopyBesideTest, AChangeAfterTheCopyIsNone) {
  CopyBeside copies;
  Memory memory;
  ASSERT_TRUE(copies.Begin(memory.parts()).ok());
  ASSERT_TRUE(copies.Wait(Later()).ok());
  memory.Change();
  EXPECT_EQ(copies.FindChanged(), std::nullopt);
}

TEST(CopyBesideTest, MemoryMayGoOnceItIsAbandoned) {
  CopyBeside copies;
  for (int i = 0; i < 50; ++i) {
    Memory memory;
    ASSERT_TRUE(copies.Begin(memory.parts()).ok());
    copies.Abandon();
    EXPECT_TRUE(copies.is_copied()) << "nothing is under way";
  }
}

TEST(CopyBesideTest, BeginAbandonsWhatWasUnderWay) {
  CopyBeside copies;
  Memory memory;
  {
    Memory former;
    ASSERT_TRUE(copies.Begin(former.parts()).ok());
    ASSERT_TRUE(copies.Begin(memory.parts()).ok());
  }
  ASSERT_TRUE(copies.Wait(Later()).ok());
  EXPECT_TRUE(memory.is_copied());
}

TEST(CopyBesideTest, NothingToCopyIsCopied) {
  CopyBeside copies;
  ASSERT_TRUE(copies.Begin({}).ok());
  EXPECT_TRUE(copies.Wait(absl::InfinitePast()).ok());
  EXPECT_EQ(copies.FindChanged(), std::nullopt);
}

}  // namespace
}  // namespace pelton
