// Where addresses lie, over many seeds: regions come, go and come again at the same place, side by
// side or with gaps, while two threads, each with its own memory of what it saw last, look.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/draws.h"
#include "core/memory/region.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr uint64_t kSeeds = 300;
constexpr size_t kMemoryBytes = 4096;

// Regions over parts of one array, beside a plain list of them that says what is right.
// Threads: one at a time. Owns: the array and the regions.
class Regions {
 public:
  explicit Regions(uint64_t seed) : draws_(seed), memory_(kMemoryBytes) {}

  uint64_t Below(uint64_t end) { return draws_.Below(end); }

  // A region at a place that no other one has, right behind one as often as not.
  void Add() {
    size_t begin = Below(kMemoryBytes);
    if (!live_.empty() && Below(2) == 0) {
      const auto& [at, region] = *std::next(live_.begin(), static_cast<long>(Below(live_.size())));
      begin = at + region->size_bytes();
    }
    size_t end = begin + 1 + Below(200);
    const auto next = live_.lower_bound(begin);
    if (next != live_.end()) end = std::min(end, next->first);
    end = std::min(end, kMemoryBytes);
    if (begin >= end || IsTaken(begin)) return;
    live_[begin] = Region::Adopt(memory_.data() + begin, end - begin, absl::StrCat("at ", begin));
  }

  void Remove() {
    if (live_.empty()) return;
    const auto chosen = std::next(live_.begin(), static_cast<long>(Below(live_.size())));
    gone_.push_back(chosen->second->id());
    live_.erase(chosen);
  }

  // Locates a span and goes back from there, and asks for spans that are in no region.
  void Look() {
    const size_t begin = Below(kMemoryBytes);
    const size_t size_bytes = Below(4) == 0 ? 0 : Below(300);
    const std::byte* const data = memory_.data() + begin;
    const Location found = Locate(data, size_bytes);
    ASSERT_EQ(found, Expected(begin, size_bytes)) << begin << " with " << size_bytes;
    ASSERT_EQ(*Resolve(found, size_bytes), data);
    if (found.region == kPrivateRegion) return;
    const size_t beyond = SizeOf(found.region) - found.offset + 1;
    ASSERT_TRUE(absl::IsOutOfRange(Resolve(found, beyond).status()));
    ASSERT_TRUE(absl::IsOutOfRange(Resolve({found.region, ~uint64_t{0}}, 2).status()));
  }

  void LookForOneThatIsGone() {
    if (gone_.empty()) return;
    const RegionId id = gone_[Below(gone_.size())];
    ASSERT_TRUE(absl::IsNotFound(Resolve({id, 0}, 1).status()));
    ASSERT_TRUE(absl::IsNotFound(DescriptorOf(id).status()));
    ASSERT_FALSE(IsUnshared(id));
  }

 private:
  bool IsTaken(size_t at) const {
    const auto after = live_.upper_bound(at);
    return after != live_.begin() && at < std::prev(after)->first + SizeAt(std::prev(after));
  }
  template <typename Iterator>
  static size_t SizeAt(Iterator region) {
    return region->second->size_bytes();
  }
  size_t SizeOf(RegionId id) const {
    for (const auto& [at, region] : live_) {
      if (region->id() == id) return region->size_bytes();
    }
    return 0;
  }
  Location Expected(size_t begin, size_t size_bytes) const {
    for (const auto& [at, region] : live_) {
      const size_t end = at + region->size_bytes();
      // An address behind the last byte is the region's where no other one begins there.
      const bool holds_begin =
          begin >= at && (begin < end || (begin == end && !live_.contains(end)));
      if (holds_begin && begin + size_bytes <= end) return {region->id(), begin - at};
    }
    return {kPrivateRegion, reinterpret_cast<uintptr_t>(memory_.data() + begin)};
  }

  Draws draws_;
  std::vector<std::byte> memory_;
  std::map<size_t, std::unique_ptr<Region>> live_;  // by where they begin in memory_
  std::vector<RegionId> gone_;
};

// Runs what it is given on a thread of its own, and waits for it. Threads: one. Owns: the thread.
class OtherThread {
 public:
  ~OtherThread() {
    work_ = nullptr;
    given_.release();
    thread_.join();
  }
  void Run(std::function<void()> work) {
    work_ = std::move(work);
    given_.release();
    done_.acquire();
  }

 private:
  void Loop() {
    for (given_.acquire(); work_ != nullptr; given_.acquire()) {
      work_();
      done_.release();
    }
  }

  std::function<void()> work_;
  std::binary_semaphore given_{0};
  std::binary_semaphore done_{0};
  std::thread thread_{[this] { Loop(); }};
};

TEST(RegionPropertyTest, EachThreadFindsRegionsAsTheyAreNow) {
  OtherThread other;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Regions regions(seed);
    for (int step = 0; step < 200; ++step) {
      const auto run = [&] {
        switch (regions.Below(6)) {
          case 0:
            return regions.Add();
          case 1:
            return regions.Remove();
          case 2:
            return regions.LookForOneThatIsGone();
          default:
            return regions.Look();
        }
      };
      if (regions.Below(2) == 0) {
        run();
      } else {
        other.Run(run);
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace pelton
