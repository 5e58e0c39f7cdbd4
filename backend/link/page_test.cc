#include "backend/link/page.h"

#include <cstring>
#include <string>

#include "core/base/long_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

LinkPage NewPage(size_t slot_count) {
  return *LinkPage::Map(LinkPage::Create(slot_count, 1)->get(), slot_count);
}

TEST(LinkPageTest, BothSidesSeeItsWords) {
  const Descriptor memory = *LinkPage::Create(3, 7);
  const LinkPage daemon = *LinkPage::Map(memory.get(), 3);
  const LinkPage trainer = *LinkPage::Map(memory.get(), 3);
  EXPECT_EQ(trainer.header().attachment, 7);
  trainer.bucket(BucketId(2)).ready.store(5);
  trainer.slot(SlotId(2)).mark.store(11);
  EXPECT_EQ(daemon.bucket(BucketId(2)).ready.load(), 5);
  EXPECT_EQ(daemon.slot(SlotId(2)).mark.load(), 11);
  EXPECT_EQ(daemon.bucket(BucketId(1)).ready.load(), 0);
}

TEST(LinkPageTest, NoTwoWordsOfDifferentSidesShareACacheLine) {
  const LinkPage page = NewPage(2);
  const auto line = [](const void* word) { return reinterpret_cast<uintptr_t>(word) / 64; };
  const PageHeader& header = page.header();
  EXPECT_NE(line(&header.daemon_sleeps), line(&header.trainer_sleeps));
  EXPECT_NE(line(&header.trainer_sleeps), line(&header.waited));
  EXPECT_NE(line(&header.waited), line(&header.ended));
  EXPECT_NE(line(&page.bucket(BucketId(0))), line(&page.bucket(BucketId(1))));
}

TEST(LinkPageTest, RefusesWhatIsNoPageOfThisVersion) {
  const Descriptor memory = *LinkPage::Create(3, 1);
  EXPECT_THAT(std::string(LinkPage::Map(memory.get(), 4).status().message()),
              HasSubstr("4 slots take"));
  EXPECT_THAT(std::string(LinkPage::Map(memory.get(), 2).status().message()),
              HasSubstr("3 slots; expected"));
  LinkPage::Map(memory.get(), 3)->header().version = 99;
  EXPECT_THAT(std::string(LinkPage::Map(memory.get(), 3).status().message()),
              HasSubstr("version 99"));
  EXPECT_FALSE(LinkPage::Map(0, 3).ok()) << "no memory at all";
}

TEST(LinkPageTest, CarriesAStatusWithItsKind) {
  const LinkPage page = NewPage(1);
  for (const absl::Status& status :
       {absl::OkStatus(), absl::UnavailableError("rank 3 is gone"), InterruptedError("stop")}) {
    page.SetOutcome(status);
    EXPECT_EQ(page.outcome(), status);
    EXPECT_EQ(IsInterrupted(page.outcome()), IsInterrupted(status));
  }
  page.SetOutcome(absl::AbortedError(std::string(10000, 'x')));
  EXPECT_EQ(page.outcome().message().size(), PageOutcome::kTextBytes) << "cut";
}

TEST(LinkPageTest, ReadsGarbageAsAnError) {
  const LinkPage page = NewPage(1);
  for (const int fill : {0x01, 0x7F, 0x80, 0xFF}) {
    std::memset(static_cast<void*>(&page.header().outcome), fill, sizeof(PageOutcome));
    EXPECT_FALSE(page.outcome().ok());
    EXPECT_LE(page.outcome().message().size(), PageOutcome::kTextBytes + 100);
  }
}

}  // namespace
}  // namespace pelton
