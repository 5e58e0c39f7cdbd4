#include "core/plan/ready_tracker.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Threads: any. Owns: a count per bucket.
class CountingSink final : public ReadySink {
 public:
  void OnBucketReady(BucketId bucket, Round round) override {
    counts[static_cast<size_t>(bucket.value())].fetch_add(1);
    last_round.store(round.value());
  }
  std::vector<std::atomic<int>> counts = std::vector<std::atomic<int>>(8);
  std::atomic<uint64_t> last_round{0};
};

Plan FourTensors(uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
  std::vector<TensorSpec> tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors.push_back({name, DType::kFloat32, 16, {}});
  }
  PlanOptions options;
  options.bucket_size_bytes = 128;  // {d, c}, {b, a}
  options.standalone_bytes = standalone_bytes;
  return *Plan::Build(std::move(tensors), options);
}

// Threads: one. Owns: a tracker and what it refers to.
struct Tracked {
  explicit Tracked(Plan its_plan = FourTensors())
      : plan(std::move(its_plan)),
        storage(*BucketStorage::Create(plan, "test")),
        tracker(plan, *storage, sink, Round(1)) {}
  std::string ErrorOf(int32_t slot) { return tracker.MarkReady(SlotId(slot)).ToString(); }
  int count(size_t bucket) { return sink.counts[bucket].load(); }

  const Plan plan;
  std::unique_ptr<BucketStorage> storage;
  CountingSink sink;
  ReadyTracker tracker;
};

TEST(ReadyTrackerTest, ABucketThatIsTakenBackIsMarkedAnewAndTheOthersKeepTheirOrder) {
  Tracked t;
  for (int32_t slot : {1, 3, 0, 2}) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
  t.tracker.OpenRound();
  for (int32_t slot : {3, 1, 2}) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
  t.tracker.TakeBackAllBut({});  // of one bucket all of it, of the other a tensor
  EXPECT_EQ(t.tracker.UnmarkedSlots().size(), 4U);
  EXPECT_FALSE(t.tracker.UsedHere(SlotId(3)));
  for (int32_t slot : {0, 1}) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
  t.tracker.TakeBackAllBut({BucketId(1)});  // of the other none is
  for (int32_t slot : {2, 3}) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
  EXPECT_THAT(t.tracker.ReadyOrder(), ElementsAre(SlotId(0), SlotId(1), SlotId(2), SlotId(3)));
  EXPECT_EQ(t.count(0), 3) << "twice in the second round";
  EXPECT_EQ(t.count(1), 2);
}

TEST(ReadyTrackerTest, TheLastSlotOfABucketTellsTheSinkOnce) {
  Tracked t;
  ASSERT_TRUE(t.tracker.MarkReady(SlotId(3)).ok());
  EXPECT_EQ(t.count(0), 0);
  ASSERT_TRUE(t.tracker.MarkReady(SlotId(2)).ok());
  EXPECT_EQ(t.count(0), 1);
  EXPECT_EQ(t.count(1), 0);
  EXPECT_EQ(t.sink.last_round.load(), 1u);
}

TEST(ReadyTrackerTest, RoundsNeedNoReset) {
  Tracked t;
  for (uint64_t round = 1; round <= 5; ++round) {
    for (int32_t slot = 0; slot < 4; ++slot) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
    EXPECT_EQ(t.count(0), static_cast<int>(round));
    EXPECT_EQ(t.sink.last_round.load(), round);
    t.tracker.OpenRound();
  }
}

TEST(ReadyTrackerTest, RefusesTwiceUnknownAndAfterTheEnd) {
  Tracked t;
  ASSERT_TRUE(t.tracker.MarkReady(SlotId(1)).ok());
  EXPECT_THAT(t.ErrorOf(1), HasSubstr("tensor 'b' of bucket 1 is ready for the second time"));
  EXPECT_THAT(t.ErrorOf(1), HasSubstr("round 1"));
  EXPECT_THAT(t.ErrorOf(4), HasSubstr("slot 4 is unknown"));
  EXPECT_THAT(t.ErrorOf(-1), HasSubstr("slot -1 is unknown"));
  ASSERT_TRUE(t.tracker.EndRound().ok());
  EXPECT_THAT(t.ErrorOf(0), HasSubstr("round 1 has ended"));
  EXPECT_EQ(t.count(1), 1);
}

TEST(ReadyTrackerTest, EndRoundZeroesAndCountsWhatIsLeft) {
  Tracked t;
  std::fill_n(reinterpret_cast<float*>(t.storage->DataOf(SlotId(0))), 16, 3.0f);
  ASSERT_TRUE(t.tracker.MarkReady(SlotId(1)).ok());
  EXPECT_THAT(t.tracker.UnmarkedSlots(), ElementsAre(SlotId(3), SlotId(2), SlotId(0)));
  ASSERT_TRUE(t.tracker.EndRound().ok());
  EXPECT_EQ(t.count(0), 1);
  EXPECT_EQ(t.count(1), 1);
  EXPECT_EQ(reinterpret_cast<float*>(t.storage->DataOf(SlotId(0)))[15], 0);
  EXPECT_TRUE(t.tracker.UsedHere(SlotId(1)));
  EXPECT_FALSE(t.tracker.UsedHere(SlotId(0)));
  EXPECT_THAT(t.tracker.UnmarkedSlots(), IsEmpty());
  t.tracker.OpenRound();
  EXPECT_EQ(t.tracker.UnmarkedSlots().size(), 4u);
}

TEST(ReadyTrackerTest, AbandonedRoundsTellNobodyAndTheNextOneCounts) {
  Tracked t;
  ASSERT_TRUE(t.tracker.MarkReady(SlotId(3)).ok());
  t.tracker.AbandonRound();
  EXPECT_EQ(t.count(0) + t.count(1), 0);
  t.tracker.OpenRound();
  ASSERT_TRUE(t.tracker.EndRound().ok());
  EXPECT_EQ(t.count(0), 1);
  EXPECT_EQ(t.count(1), 1);
}

TEST(ReadyTrackerTest, StandaloneSlotsNeedAPlace) {
  Tracked t(FourTensors(/*standalone_bytes=*/64));
  std::vector<float> memory(16, 1.0f);
  EXPECT_THAT(t.ErrorOf(3), HasSubstr("its address is needed"));
  EXPECT_THAT(t.tracker.MarkReady(SlotId(3), nullptr).ToString(), HasSubstr("null"));
  ASSERT_TRUE(t.tracker.MarkReady(SlotId(3), memory.data()).ok());
  EXPECT_EQ(t.storage->DataOf(SlotId(3)), reinterpret_cast<std::byte*>(memory.data()));
  ASSERT_TRUE(t.tracker.EndRound().ok());
  ASSERT_NE(t.storage->DataOf(SlotId(0)), nullptr);
  EXPECT_EQ(*reinterpret_cast<float*>(t.storage->DataOf(SlotId(0))), 0);
  EXPECT_EQ(t.storage->SegmentsOf(BucketId(0)).size(), 2u);

  Tracked flat;
  EXPECT_THAT(flat.tracker.MarkReady(SlotId(3), memory.data()).ToString(),
              HasSubstr("cannot be elsewhere"));
}

TEST(ReadyTrackerTest, RemembersTheOrderOfMarks) {
  Tracked t;
  for (int32_t slot : {2, 0, 3}) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
  ASSERT_TRUE(t.tracker.EndRound().ok());
  EXPECT_THAT(t.tracker.ReadyOrder(), ElementsAre(SlotId(2), SlotId(0), SlotId(3), SlotId(1)));
  t.tracker.OpenRound();
  for (int32_t slot : {3, 2, 1, 0}) ASSERT_TRUE(t.tracker.MarkReady(SlotId(slot)).ok());
  EXPECT_THAT(t.tracker.ReadyOrder(), ElementsAre(SlotId(3), SlotId(2), SlotId(1), SlotId(0)));
}

TEST(ReadyTrackerTest, ManyThreadsMarkAndEachBucketIsReadyOnce) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 64; ++i) {
    tensors.push_back({"t" + std::to_string(i), DType::kFloat32, 16, {}});
  }
  PlanOptions options;
  options.bucket_size_bytes = 8 * 64;  // eight buckets of eight slots
  Tracked t(*Plan::Build(tensors, options));
  for (int round = 1; round <= 50; ++round) {
    std::vector<std::thread> threads;
    std::atomic<int> refused{0};
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&t, &refused, thread] {
        for (int32_t slot = thread / 2; slot < 64; slot += 2) {  // each slot by two threads
          if (!t.tracker.MarkReady(SlotId(slot)).ok()) refused.fetch_add(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(refused.load(), 64);
    for (size_t bucket = 0; bucket < 8; ++bucket) EXPECT_EQ(t.count(bucket), round);
    t.tracker.OpenRound();
  }
}

}  // namespace
}  // namespace pelton
