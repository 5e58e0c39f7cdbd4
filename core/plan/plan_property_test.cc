// What holds for every plan, its memory and its marks, over many seeds. Each seed chooses tensors
// of all dtypes and sizes (without elements, too), options, orders and bucket sizes that follow,
// and in which order tensors are marked, taken back or left.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/draws.h"
#include "core/base/limits.h"
#include "core/plan/bucket.h"
#include "core/plan/plan.h"
#include "core/plan/ready_tracker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kSeeds = 400;

std::vector<SlotId> Shuffled(Draws& draws, size_t count) {
  std::vector<SlotId> order;
  for (size_t i = 0; i < count; ++i) order.emplace_back(static_cast<int32_t>(i));
  draws.Shuffle(order);
  return order;
}

std::vector<TensorSpec> TensorsOf(Draws& draws, bool may_be_on_devices) {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kInt64, DType::kUInt8};
  std::vector<TensorSpec> tensors;
  const uint64_t count = 1 + draws.Below(20);
  for (uint64_t i = 0; i < count; ++i) {
    TensorSpec tensor{absl::StrCat("t", i), kDTypes[draws.OneIn(2) ? 0 : draws.Below(4)],
                      draws.OneIn(6) ? 0 : draws.Below(draws.OneIn(4) ? 2000 : 60)};
    if (may_be_on_devices && draws.OneIn(5)) tensor.device = {DeviceKind::kCuda, 0};
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

PlanOptions OptionsOf(Draws& draws) {
  PlanOptions options;
  options.world_size = WorldSize(static_cast<int32_t>(1 + draws.Below(9)));
  options.bucket_size_bytes = 1 + draws.Below(1500);
  if (draws.OneIn(3)) options.standalone_bytes = 1 + draws.Below(400);
  options.constraints.alignment_count = 1 + draws.Below(40);
  options.constraints.allows_standalone = !draws.OneIn(3);
  options.constraints.packs_slots = draws.OneIn(3);
  options.algorithm = "any()";
  return options;
}

// A bucket of the user's for each dtype and device at least, since one has tensors of one kind.
void ChooseBuckets(Draws& draws, const std::vector<TensorSpec>& tensors, PlanOptions& options) {
  for (const TensorSpec& tensor : tensors) {
    const auto kind = static_cast<int32_t>(tensor.dtype) * 2 + (tensor.device != Device{} ? 1 : 0);
    options.buckets.push_back(kind * 3 + static_cast<int32_t>(draws.Below(3)));
  }
}

std::vector<SlotId> Concatenated(const Plan& plan) {
  std::vector<SlotId> slots;
  for (const BucketLayout& bucket : plan.buckets()) {
    slots.insert(slots.end(), bucket.slots.begin(), bucket.slots.end());
  }
  return slots;
}

// Every slot is in one bucket, in the place that its layout names, beside tensors of its kind.
void ExpectEverySlotInItsBucket(const Plan& plan) {
  std::vector<SlotId> slots = Concatenated(plan);
  EXPECT_EQ(std::set<SlotId>(slots.begin(), slots.end()).size(), slots.size());
  ASSERT_EQ(slots.size(), plan.tensors().size());
  for (size_t i = 0; i < plan.buckets().size(); ++i) {
    const BucketLayout& bucket = plan.buckets()[i];
    ASSERT_EQ(bucket.id, BucketId(static_cast<int32_t>(i)));
    ASSERT_FALSE(bucket.slots.empty());
    for (size_t index = 0; index < bucket.slots.size(); ++index) {
      const SlotId slot = bucket.slots[index];
      EXPECT_EQ(plan.slot(slot).bucket, bucket.id);
      EXPECT_EQ(plan.slot(slot).index, static_cast<int32_t>(index));
      EXPECT_EQ(plan.slot(slot).size_bytes, plan.tensor(slot).size_bytes());
      EXPECT_EQ(plan.tensor(slot).dtype, bucket.dtype);
      EXPECT_EQ(plan.tensor(slot).device, bucket.device);
    }
  }
}

// ORDER-1: within a bucket tensors keep the order of the plan, and a bucket is released when its
// last tensor is ready, so that none waits for one that is released later.
void ExpectReleasedInOrder(const Plan& plan, const std::vector<SlotId>& order) {
  std::map<SlotId, size_t> place;
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  size_t released = 0;
  for (const BucketLayout& bucket : plan.buckets()) {
    for (size_t i = 1; i < bucket.slots.size(); ++i) {
      EXPECT_LT(place[bucket.slots[i - 1]], place[bucket.slots[i]]);
    }
    const size_t last = place[bucket.slots.back()];
    EXPECT_TRUE(bucket.id == BucketId(0) || last > released) << "bucket " << bucket.id.value();
    released = last;
  }
}

// No bucket is larger than was asked for, unless it has one tensor, and none was closed early.
void ExpectFullBuckets(const Plan& plan) {
  const uint64_t limit = plan.options().bucket_size_bytes;
  std::map<std::pair<DType, Device>, const BucketLayout*> before;
  std::map<const BucketLayout*, uint64_t> sizes;
  for (const BucketLayout& bucket : plan.buckets()) {
    for (SlotId slot : bucket.slots) sizes[&bucket] += plan.slot(slot).size_bytes;
    EXPECT_TRUE(sizes[&bucket] <= limit || bucket.slots.size() == 1);
    const BucketLayout*& last = before[{bucket.dtype, bucket.device}];
    if (last != nullptr) {
      EXPECT_GT(sizes[last] + plan.slot(bucket.slots.front()).size_bytes, limit);
    }
    last = &bucket;
  }
}

struct Range {
  uint64_t begin_bytes;
  uint64_t end_bytes;
};

// Flat parts follow each other on pages, slots in them on cache lines or without gaps.
void ExpectDisjointAndAligned(const Plan& plan) {
  const PlanConstraints& constraints = plan.options().constraints;
  uint64_t end_of_last = 0;
  for (const BucketLayout& bucket : plan.buckets()) {
    const uint64_t element_bytes = SizeOf(bucket.dtype);
    const Range flat{bucket.flat_offset_bytes,
                     bucket.flat_offset_bytes + bucket.flat_count * element_bytes};
    EXPECT_EQ(flat.begin_bytes % limits::kRegionAlignmentBytes, 0u);
    EXPECT_GE(flat.begin_bytes, end_of_last);
    EXPECT_LE(flat.end_bytes, plan.flat_bytes());
    end_of_last = flat.end_bytes;
    uint64_t cursor = flat.begin_bytes;
    for (SlotId slot : bucket.slots) {
      const SlotLayout& layout = plan.slot(slot);
      if (layout.standalone) continue;
      const uint64_t aligned = RoundUp(cursor, limits::kSlotAlignmentBytes);
      EXPECT_EQ(layout.offset_bytes, constraints.packs_slots ? cursor : aligned);
      cursor = layout.offset_bytes + layout.size_bytes;
    }
    EXPECT_EQ(bucket.content_count * element_bytes,
              RoundUp(cursor - flat.begin_bytes, limits::kSlotAlignmentBytes));
    const uint64_t multiple =
        static_cast<uint64_t>(plan.options().world_size.value()) * constraints.alignment_count;
    EXPECT_EQ(bucket.flat_count, RoundUp(bucket.content_count, multiple));
  }
}

void ExpectStandaloneWhereAllowed(const Plan& plan) {
  for (const BucketLayout& bucket : plan.buckets()) {
    std::vector<SlotId> expected;
    for (SlotId slot : bucket.slots) {
      const bool is_large = plan.slot(slot).size_bytes >= plan.options().standalone_bytes;
      const bool is_alone = is_large && plan.options().constraints.allows_standalone;
      EXPECT_EQ(plan.slot(slot).standalone, is_alone);
      if (is_alone) expected.push_back(slot);
    }
    EXPECT_EQ(bucket.standalone, expected);
  }
}

void ExpectGoodLayout(const Plan& plan, const std::vector<SlotId>& order) {
  ExpectEverySlotInItsBucket(plan);
  ExpectReleasedInOrder(plan, order);
  ExpectDisjointAndAligned(plan);
  ExpectStandaloneWhereAllowed(plan);
  if (plan.options().buckets.empty()) ExpectFullBuckets(plan);
}

TEST(PlanPropertyTest, LayoutsAreSoundInEveryOrderAndSize) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Draws draws(seed);
    const std::vector<TensorSpec> tensors = TensorsOf(draws, /*may_be_on_devices=*/true);
    Plan plan = *Plan::Build(tensors, OptionsOf(draws));
    std::vector<SlotId> order(tensors.size(), SlotId(0));
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = SlotId(static_cast<int32_t>(order.size() - 1 - i));
    }
    ExpectGoodLayout(plan, order);
    for (int step = 0; step < 3; ++step) {
      order = Shuffled(draws, tensors.size());
      const PlanVersion version = plan.version();
      plan = draws.OneIn(2) ? *plan.Reordered(order) : *plan.Resized(order, 1 + draws.Below(2000));
      EXPECT_EQ(plan.version().value(), version.value() + 1);
      ExpectGoodLayout(plan, order);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(PlanPropertyTest, BucketsOfTheUsersStayTheirsInEveryOrder) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Draws draws(seed);
    const std::vector<TensorSpec> tensors = TensorsOf(draws, /*may_be_on_devices=*/true);
    PlanOptions options = OptionsOf(draws);
    ChooseBuckets(draws, tensors, options);
    const Plan first = *Plan::Build(tensors, options);
    const std::vector<SlotId> order = Shuffled(draws, tensors.size());
    const Plan reordered = *first.Reordered(order);
    ExpectGoodLayout(reordered, order);
    for (const Plan* plan : {&first, &reordered}) {
      std::map<int32_t, std::set<BucketId>> where;
      for (size_t i = 0; i < tensors.size(); ++i) {
        where[options.buckets[i]].insert(plan->slots()[i].bucket);
      }
      EXPECT_EQ(plan->buckets().size(), where.size());
      for (const auto& [chosen, buckets] : where) EXPECT_EQ(buckets.size(), 1u) << chosen;
    }
    // At first they are released by their numbers, and tensors keep the order of registration.
    std::vector<SlotId> by_number = Concatenated(first);
    EXPECT_TRUE(std::is_sorted(by_number.begin(), by_number.end(), [&](SlotId a, SlotId b) {
      return std::pair(options.buckets[a.value()], a.value()) <
             std::pair(options.buckets[b.value()], b.value());
    }));
    if (::testing::Test::HasFailure()) return;
  }
}

// What LocalRounds::Resize relies on when it makes memory that serves every size.
TEST(PlanPropertyTest, NoBucketSizeNeedsMoreThanABucketForEachTensor) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Draws draws(seed);
    const std::vector<TensorSpec> tensors = TensorsOf(draws, /*may_be_on_devices=*/false);
    const Plan plan = *Plan::Build(tensors, OptionsOf(draws));
    const std::vector<SlotId> order = Shuffled(draws, tensors.size());
    const uint64_t most_bytes = plan.Resized(order, 1)->flat_bytes();
    for (int size = 0; size < 10; ++size) {
      const uint64_t bucket_bytes = 1 + draws.Below(4000);
      ASSERT_LE(plan.Resized(order, bucket_bytes)->flat_bytes(), most_bytes)
          << "seed " << seed << ", buckets of " << bucket_bytes;
    }
  }
}

TEST(PlanPropertyTest, TextsDifferWhereLayoutsDoAndNameIt) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Draws draws(seed);
    std::vector<TensorSpec> tensors = TensorsOf(draws, /*may_be_on_devices=*/true);
    const PlanOptions options = OptionsOf(draws);
    const Plan plan = *Plan::Build(tensors, options);
    EXPECT_EQ(Plan::Build(tensors, options)->Serialize(), plan.Serialize());
    TensorSpec& changed = tensors[draws.Below(tensors.size())];
    switch (draws.Below(4)) {
      case 0:
        changed.count += 1;
        break;
      case 1:
        changed.name += "'";
        break;
      case 2:
        changed.columns = changed.columns + 7;
        break;
      case 3:
        changed.layout = "strides [1, 2]";
        break;
    }
    const Plan other = *Plan::Build(tensors, options);
    EXPECT_NE(other.Hash(), plan.Hash());
    EXPECT_THAT(FirstDifference(plan.Serialize(), other.Serialize()),
                ::testing::AllOf(::testing::HasSubstr("here: tensor 't"),
                                 ::testing::HasSubstr("there: tensor 't")));
    if (::testing::Test::HasFailure()) return;
  }
}

// Threads: one. Owns: a plan and its memory, with a number in each byte of each slot.
struct Filled {
  Filled(Plan its_plan, std::unique_ptr<BucketStorage> its_storage)
      : plan(std::move(its_plan)), storage(std::move(its_storage)) {}

  void Fill() {
    for (size_t i = 0; i < plan.slots().size(); ++i) {
      const SlotLayout& slot = plan.slots()[i];
      if (slot.standalone || slot.size_bytes == 0) continue;
      std::memset(storage->DataOf(SlotId(static_cast<int32_t>(i))), static_cast<int>(i) + 1,
                  slot.size_bytes);
    }
  }
  void ExpectSlotsHold(const std::vector<std::byte>& memory) const {
    for (size_t i = 0; i < plan.slots().size(); ++i) {
      const SlotLayout& slot = plan.slots()[i];
      if (slot.standalone || slot.size_bytes == 0) continue;
      EXPECT_EQ(std::memcmp(storage->DataOf(SlotId(static_cast<int32_t>(i))),
                            memory.data() + slot.offset_bytes, slot.size_bytes),
                0)
          << "slot " << i;
    }
  }
  // Of each byte of the flat parts, the slot that it is of, from 1; 0 for those of none.
  std::vector<std::byte> Expected() const {
    std::vector<std::byte> bytes(plan.flat_bytes());
    for (size_t i = 0; i < plan.slots().size(); ++i) {
      const SlotLayout& slot = plan.slots()[i];
      if (slot.standalone || slot.size_bytes == 0) continue;
      std::memset(bytes.data() + slot.offset_bytes, static_cast<int>(i) + 1, slot.size_bytes);
    }
    return bytes;
  }
  // Whether each flat part, as its segment names it, holds what is expected of it.
  void ExpectAsFilled() const {
    const std::vector<std::byte> expected = Expected();
    for (const BucketLayout& bucket : plan.buckets()) {
      const uint64_t size_bytes = bucket.flat_count * SizeOf(bucket.dtype);
      const SegmentList segments = storage->SegmentsOf(bucket.id);
      ASSERT_EQ(segments.size(), (size_bytes > 0 ? 1 : 0) + bucket.standalone.size());
      if (size_bytes == 0) continue;
      EXPECT_EQ(segments[0].count, bucket.flat_count);
      std::byte* const flat = *Resolve(segments[0].location, size_bytes);
      EXPECT_EQ(flat, storage->FlatOf(bucket.id));
      EXPECT_EQ(std::memcmp(flat, expected.data() + bucket.flat_offset_bytes, size_bytes), 0)
          << "bucket " << bucket.id.value();
    }
  }

  Plan plan;
  std::unique_ptr<BucketStorage> storage;
};

TEST(PlanPropertyTest, MemoryThatIsTakenOverHasZerosBetweenSlots) {
  int taken = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Draws draws(seed);
    const std::vector<TensorSpec> tensors = TensorsOf(draws, /*may_be_on_devices=*/false);
    const Plan plan = *Plan::Build(tensors, OptionsOf(draws));
    Filled now(plan, *BucketStorage::Create(plan, "test"));
    now.Fill();
    now.ExpectAsFilled();
    for (int step = 0; step < 3; ++step) {
      const std::vector<SlotId> order = Shuffled(draws, tensors.size());
      Plan next = *now.plan.Resized(order, 1 + draws.Below(2000));
      if (!now.storage->Fits(next)) continue;
      ++taken;
      Filled after(next, BucketStorage::CreateToFollow(next));
      const std::byte* const memory = now.storage->region()->data();
      const std::vector<std::byte> before(memory, memory + next.flat_bytes());
      after.storage->TakeMemoryOf(*now.storage);
      after.ExpectSlotsHold(before);
      after.Fill();
      after.ExpectAsFilled();
      now = std::move(after);
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(taken, static_cast<int>(kSeeds) / 4);
}

// Remembers who was told of what. Threads: one. Owns: the record.
class RecordingSink final : public ReadySink {
 public:
  void OnBucketReady(BucketId bucket, Round round) override {
    told.emplace_back(bucket, round.value());
  }
  std::vector<std::pair<BucketId, uint64_t>> told;
};

// What a tracker should say, in the plainest form. Threads: one. Owns: the marks of one round.
struct Marks {
  std::optional<bool> of[32];  // by slot: whether it was used; none: not marked
  std::vector<SlotId> order;

  void Mark(SlotId slot, bool used) {
    of[slot.value()] = used;
    order.push_back(slot);
  }
  bool Has(SlotId slot) const { return of[slot.value()].has_value(); }
  void TakeBack(SlotId slot) {
    of[slot.value()].reset();
    order.erase(std::find(order.begin(), order.end(), slot));
  }
};

// Threads: one. Owns: a tracker beside what it should say.
class TrackedModel {
 public:
  explicit TrackedModel(uint64_t seed)
      : draws_(seed),
        plan_(*Plan::Build(TensorsOf(draws_, /*may_be_on_devices=*/false), OptionsOf(draws_))),
        storage_(*BucketStorage::Create(plan_, "test")),
        tracker_(plan_, *storage_, sink_, Round(round_)),
        memory_(8 * 2000) {}

  void RunRound() {
    expected_.clear();
    sink_.told.clear();
    for (int step = 0; step < 30; ++step) Step();
    const uint64_t end = draws_.Below(3);
    if (end == 0) Abandon();
    if (end == 1) EndRound();
    if (end == 2) MarkRest();
    EXPECT_EQ(sink_.told, expected_);
    EXPECT_EQ(tracker_.ReadyOrder(), marks_.order);
    ExpectAsMarked();
    tracker_.OpenRound();
    ++round_;
    marks_ = Marks();
  }

 private:
  SlotId AnySlot() { return SlotId(static_cast<int32_t>(draws_.Below(plan_.slots().size()))); }

  void Step() {
    if (draws_.OneIn(12)) return TakeBack();
    const SlotId slot = AnySlot();
    if (draws_.OneIn(2)) return Mark(slot);
    EXPECT_EQ(tracker_.UsedHere(slot) && marks_.Has(slot), marks_.of[slot.value()].value_or(false));
  }

  absl::Status Tell(SlotId slot, bool used) {
    void* const place = plan_.slot(slot).standalone ? memory_.data() : nullptr;
    if (!used) return tracker_.MarkUnused(slot, place);
    return place == nullptr ? tracker_.MarkReady(slot) : tracker_.MarkReady(slot, place);
  }

  void Mark(SlotId slot) {
    const bool used = !draws_.OneIn(4);
    const bool is_second = marks_.Has(slot);
    EXPECT_EQ(Tell(slot, used).code(),
              is_second ? absl::StatusCode::kAlreadyExists : absl::StatusCode::kOk);
    if (!is_second) Note(slot, used);
  }

  void Note(SlotId slot, bool used) {
    marks_.Mark(slot, used);
    const BucketLayout& bucket = plan_.bucket(plan_.slot(slot).bucket);
    const bool is_whole = std::all_of(bucket.slots.begin(), bucket.slots.end(),
                                      [this](SlotId other) { return marks_.Has(other); });
    if (is_whole) expected_.emplace_back(bucket.id, round_);
  }

  void TakeBack() {
    std::vector<BucketId> kept;
    for (const BucketLayout& bucket : plan_.buckets()) {
      if (draws_.OneIn(2)) {
        kept.push_back(bucket.id);
        continue;
      }
      for (SlotId slot : bucket.slots) {
        if (marks_.Has(slot)) marks_.TakeBack(slot);
      }
    }
    tracker_.TakeBackAllBut(kept);
    std::vector<SlotId> unmarked;
    for (SlotId slot : Concatenated(plan_)) {
      if (!marks_.Has(slot)) unmarked.push_back(slot);
    }
    EXPECT_EQ(tracker_.UnmarkedSlots(), unmarked);
  }

  void MarkRest() {
    for (SlotId slot : Shuffled(draws_, plan_.slots().size())) {
      if (marks_.Has(slot)) continue;
      ASSERT_TRUE(Tell(slot, true).ok());
      Note(slot, true);
    }
  }

  void EndRound() {
    std::vector<SlotId> rest = tracker_.UnmarkedSlots();
    for (SlotId slot : rest) {
      if (!plan_.slot(slot).standalone && plan_.slot(slot).size_bytes > 0) {
        std::memset(storage_->DataOf(slot), 1, plan_.slot(slot).size_bytes);
      }
    }
    ASSERT_TRUE(tracker_.EndRound().ok());
    for (SlotId slot : rest) {
      Note(slot, false);
      const std::byte* const data = storage_->DataOf(slot);
      for (uint64_t i = 0; i < plan_.slot(slot).size_bytes; ++i) ASSERT_EQ(data[i], std::byte{0});
    }
    EXPECT_EQ(Tell(AnySlot(), true).code(), absl::StatusCode::kFailedPrecondition);
  }

  void Abandon() {
    for (SlotId slot : tracker_.UnmarkedSlots()) marks_.Mark(slot, false);
    tracker_.AbandonRound();  // tells nobody
  }

  void ExpectAsMarked() {
    for (size_t i = 0; i < plan_.slots().size(); ++i) {
      const SlotId slot(static_cast<int32_t>(i));
      EXPECT_EQ(tracker_.UsedHere(slot), *marks_.of[i]) << "slot " << i;
    }
  }

  Draws draws_;
  uint64_t round_ = 5;
  const Plan plan_;
  std::unique_ptr<BucketStorage> storage_;
  RecordingSink sink_;
  ReadyTracker tracker_;
  std::vector<std::byte> memory_;  // of every standalone tensor
  Marks marks_;
  std::vector<std::pair<BucketId, uint64_t>> expected_;
};

TEST(PlanPropertyTest, TheTrackerCountsWhateverIsMarkedTakenBackOrLeft) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TrackedModel model(seed);
    for (int round = 0; round < 4; ++round) model.RunRound();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace pelton
