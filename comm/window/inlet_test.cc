// The inlet as it is used, and between threads.
#include "comm/window/inlet.h"

#include <array>
#include <cstdint>
#include <optional>
#include <thread>

#include "gtest/gtest.h"

namespace pelton {
namespace {

// A writer that ends in the middle: its draft stays taken, and nothing else changes.
TEST(InletTest, AWriterThatEndsInAPutLeavesTheLastValue) {
  Inlet inlet(/*is_zero=*/true);
  inlet.Put(inlet.Begin(), 0.5);
  const Inlet::Draft abandoned = inlet.Begin();
  for (int i = 0; i < 10; ++i) {
    const Inlet::View view = inlet.Take({});
    EXPECT_NE(view.buffer, abandoned.buffer);
    EXPECT_EQ(view.p, 0.5);
    inlet.Release();
    const int fill = inlet.BeginFill();
    EXPECT_NE(fill, abandoned.buffer);
    inlet.Fill(fill);
  }
}

TEST(InletTest, PutAndLookInTurnsUseTwoBuffers) {
  Inlet inlet(/*is_zero=*/false);
  for (int i = 0; i < 10; ++i) {
    const Inlet::Draft draft = inlet.Begin();
    EXPECT_LT(draft.buffer, 2);
    inlet.Put(draft, std::nullopt);
    EXPECT_LT(inlet.Take({.resets = true}).buffer, 2);
    inlet.Release();
  }
}

TEST(InletTest, PStaysWhereAPutOrALookLeavesItOut) {
  Inlet inlet(/*is_zero=*/true);
  inlet.Put(inlet.Begin(), 0.25);
  EXPECT_EQ(inlet.Take({.resets = true}).p, 0.25);
  inlet.Release();
  inlet.Put(inlet.Begin(), std::nullopt);
  EXPECT_FALSE(inlet.Add(inlet.Begin(), 0.5).has_value());
  const Inlet::View view = inlet.Take({.resets_p = true});
  EXPECT_EQ(view.p, 0.75);
  EXPECT_EQ(view.version, 1u);
  inlet.Release();
  EXPECT_EQ(inlet.Take({}).p, 0);
}

// Values of many words between two threads: the thread sanitizer sees who touches what.
TEST(InletTest, ValuesAreWholeBetweenThreads) {
  constexpr int kRounds = 20'000;
  Inlet inlet(/*is_zero=*/true);
  std::array<std::array<int64_t, 16>, 4> values = {};
  std::thread writer([&] {
    for (int i = 1; i <= kRounds; ++i) {
      Inlet::Draft draft = inlet.Begin();
      while (true) {
        for (size_t k = 0; k < 16; ++k) {
          values[draft.buffer][k] = i + (draft.is_zero ? 0 : values[draft.base][k]);
        }
        const std::optional<Inlet::Draft> again = inlet.Add(draft, i);
        if (!again) break;
        draft = *again;
      }
    }
  });
  std::array<int64_t, 16> sum = {};
  double p = 0;
  const auto collect = [&] {
    const Inlet::View view = inlet.Take({.resets = true, .resets_p = true});
    for (size_t k = 0; k < 16 && !view.is_zero; ++k) sum[k] += values[view.buffer][k];
    p += view.p;
    inlet.Release();
  };
  for (int i = 0; i < kRounds; ++i) collect();
  writer.join();
  collect();
  for (const int64_t element : sum) EXPECT_EQ(element, int64_t{kRounds} * (kRounds + 1) / 2);
  EXPECT_EQ(p, static_cast<double>(sum[0]));
}

}  // namespace
}  // namespace pelton
