// The slot as it is used, and between threads.
#include "comm/window/slot.h"

#include <array>
#include <cstdint>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace pelton {
namespace {

// A writer that ends in the middle: its draft stays taken, and nothing else changes.
TEST(SlotTest, AWriterThatEndsInAPutLeavesTheLastValue) {
  Slot slot(/*is_zero=*/true);
  slot.Put(slot.Begin(), 0.5);
  const Slot::Draft abandoned = slot.Begin();
  for (int i = 0; i < 10; ++i) {
    const Slot::View view = slot.Take({});
    EXPECT_NE(view.buffer, abandoned.buffer);
    EXPECT_EQ(view.p, 0.5);
    slot.Release();
    const int fill = slot.BeginFill();
    EXPECT_NE(fill, abandoned.buffer);
    slot.Fill(fill);
  }
}

TEST(SlotTest, PutAndLookInTurnsUseTwoBuffers) {
  Slot slot(/*is_zero=*/false);
  for (int i = 0; i < 10; ++i) {
    const Slot::Draft draft = slot.Begin();
    EXPECT_LT(draft.buffer, 2);
    slot.Put(draft, std::nullopt);
    EXPECT_LT(slot.Take({.resets = true}).buffer, 2);
    slot.Release();
  }
}

TEST(SlotTest, PStaysWhereAPutOrALookLeavesItOut) {
  Slot slot(/*is_zero=*/true);
  slot.Put(slot.Begin(), 0.25);
  EXPECT_EQ(slot.Take({.resets = true}).p, 0.25);
  slot.Release();
  slot.Put(slot.Begin(), std::nullopt);
  EXPECT_FALSE(slot.Add(slot.Begin(), 0.5).has_value());
  const Slot::View view = slot.Take({.resets_p = true});
  EXPECT_EQ(view.p, 0.75);
  EXPECT_EQ(view.version, 1u);
  slot.Release();
  EXPECT_EQ(slot.Take({}).p, 0);
}

// Values of many words between two threads: the thread sanitizer sees who touches what.
TEST(SlotTest, ValuesAreWholeBetweenThreads) {
  constexpr int kRounds = 20'000;
  Slot slot(/*is_zero=*/true);
  std::array<std::array<int64_t, 16>, 4> values = {};
  std::thread writer([&] {
    for (int i = 1; i <= kRounds; ++i) {
      Slot::Draft draft = slot.Begin();
      while (true) {
        for (size_t k = 0; k < 16; ++k) {
          values[draft.buffer][k] = i + (draft.is_zero ? 0 : values[draft.base][k]);
        }
        const std::optional<Slot::Draft> again = slot.Add(draft, i);
        if (!again) break;
        draft = *again;
      }
    }
  });
  std::array<int64_t, 16> sum = {};
  double p = 0;
  const auto collect = [&] {
    const Slot::View view = slot.Take({.resets = true, .resets_p = true});
    for (size_t k = 0; k < 16 && !view.is_zero; ++k) sum[k] += values[view.buffer][k];
    p += view.p;
    slot.Release();
  };
  for (int i = 0; i < kRounds; ++i) collect();
  writer.join();
  collect();
  for (const int64_t element : sum) EXPECT_EQ(element, int64_t{kRounds} * (kRounds + 1) / 2);
  EXPECT_EQ(p, static_cast<double>(sum[0]));
}

}  // namespace
}  // namespace pelton
