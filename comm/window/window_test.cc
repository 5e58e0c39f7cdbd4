// A window between ranks of one process: what each call does, and what it refuses.
#include "comm/window/window.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "comm/window/create_window.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/moving_deadline.h"
#include "core/base/sanitizer.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Two ranks that write to each other, with tensors of `values`.
template <typename T>
class Pair {
 public:
  Pair(DType dtype, std::vector<T> first, std::vector<T> second, bool zero_init = false)
      : tensors{std::move(first), std::move(second)}, dtype_(dtype) {
    std::vector<WindowOptions> options(2);
    for (size_t rank = 0; rank < 2; ++rank) {
      options[rank].name = "w";
      options[rank].tensor = TensorOf(tensors[rank]);
      options[rank].shape = {static_cast<int64_t>(tensors[rank].size())};
      options[rank].sources = {Rank(rank == 0 ? 1 : 0)};
      options[rank].destinations = options[rank].sources;
      options[rank].zero_init = zero_init;
    }
    auto made = CreateWindowsHere(std::move(options));
    EXPECT_TRUE(made.ok()) << made.status();
    windows = *std::move(made);
  }
  Tensor TensorOf(std::vector<T>& values) const { return {values.data(), values.size(), dtype_}; }
  Window& operator[](size_t rank) { return *windows[rank]; }

  std::vector<T> tensors[2];
  std::vector<std::unique_ptr<Window>> windows;

 private:
  const DType dtype_;
};

using Floats = Pair<float>;
Neighbor To(int32_t rank, double weight = 1) { return {Rank(rank), weight}; }

void ExpectRefused(const absl::Status& status, const std::string& what) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
}

TEST(WindowTest, InletsBeginWithTheOwnersTensorOrZero) {
  Floats copies(DType::kFloat32, {1, 2}, {5, 6});
  ASSERT_TRUE(copies[0].UpdateFromInlets({.own_weight = 1, .sources = {{To(1, 10)}}}, {}).ok());
  EXPECT_EQ(copies.tensors[0], (std::vector<float>{11, 22}));
  Floats zeros(DType::kFloat32, {1, 2}, {5, 6}, /*zero_init=*/true);
  ASSERT_TRUE(zeros[0].UpdateFromInlets({.own_weight = 1, .sources = {{To(1, 10)}}}, {}).ok());
  EXPECT_EQ(zeros.tensors[0], (std::vector<float>{1, 2}));
}

TEST(WindowTest, APutReplacesScalesItsSourceAndCounts) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6});
  const Neighbor to_1 = To(1, 3);
  ASSERT_TRUE(pair[0].Put(pair.TensorOf(pair.tensors[0]), {&to_1, 1}, 0.5, {}).ok());
  EXPECT_EQ(pair.tensors[0], (std::vector<float>{0.5, 1}));
  EXPECT_EQ(pair[1].versions()[0].second, 1u);
  const Neighbor from_0 = To(0);
  ASSERT_TRUE(pair[1].UpdateFromInlets({.own_weight = 1, .sources = {&from_0, 1}}, {}).ok());
  EXPECT_EQ(pair.tensors[1], (std::vector<float>{8, 12}));
  EXPECT_EQ(pair[1].versions()[0].second, 0u);
}

TEST(WindowTest, AWriterSeesWhetherItsInletHasBeenCollected) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6}, /*zero_init=*/true);
  EXPECT_TRUE(pair[0].IsCollected(Rank(1)));
  const Neighbor to_1 = To(1);
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(pair[0].Accumulate(pair.TensorOf(pair.tensors[0]), {&to_1, 1}, 1, {}).ok());
    EXPECT_FALSE(pair[0].IsCollected(Rank(1)));
  }
  const Neighbor from_0 = To(0);
  ASSERT_TRUE(pair[1].UpdateFromInlets({.sources = {&from_0, 1}}, {}).ok());
  EXPECT_FALSE(pair[0].IsCollected(Rank(1))) << "that has only been read";
  ASSERT_TRUE(pair[1].UpdateFromInlets({.sources = {&from_0, 1}, .resets = true}, {}).ok());
  EXPECT_TRUE(pair[0].IsCollected(Rank(1)));
  EXPECT_TRUE(pair[1].IsCollected(Rank(0)));
}

TEST(WindowTest, LargeValuesAreCopiedWhole) {
  constexpr size_t kCount = 300'001;  // several pieces and a rest
  std::vector<float> values(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i);
  Floats pair(DType::kFloat32, values, std::vector<float>(kCount, -1), /*zero_init=*/true);
  const Neighbor to_1 = To(1);
  ASSERT_TRUE(pair[0].Put(pair.TensorOf(pair.tensors[0]), {&to_1, 1}, 1, {}).ok());
  const Neighbor from_0 = To(0);
  ASSERT_TRUE(pair[1].UpdateFromInlets({.own_weight = 0, .sources = {&from_0, 1}}, {}).ok());
  EXPECT_EQ(pair.tensors[1], values);
}

TEST(WindowTest, AnAverageIsASumThenADivision) {
  Pair<double> pair(DType::kFloat64, {0x1p-1000, 3}, {0x1p-1000, 4});
  const Neighbor to_1 = To(1);
  const Neighbor half = To(0, 0.5);
  ASSERT_TRUE(pair[0].Put(pair.TensorOf(pair.tensors[0]), {&to_1, 1}, 1, {}).ok());
  ASSERT_TRUE(pair[1].UpdateFromInlets({.own_weight = 0.5, .sources = {&half, 1}}, {}).ok());
  EXPECT_EQ(pair.tensors[1], (std::vector<double>{0x1p-1000, 3.5}));
}

TEST(WindowTest, AccumulateAndCollectMoveTensorsAndP) {
  Pair<double> pair(DType::kFloat64, {8, 16}, {5, 6}, /*zero_init=*/true);
  const WindowAccess with_p{.with_p = true, .with_mutex = true};
  const Neighbor half = To(1, 0.5);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(pair[0].Accumulate(pair.TensorOf(pair.tensors[0]), {&half, 1}, 0.5, with_p).ok());
  }
  EXPECT_EQ(pair.tensors[0], (std::vector<double>{2, 4}));
  EXPECT_EQ(pair[0].p(), 0.25);
  EXPECT_EQ(pair[1].versions()[0].second, 0u);
  const Neighbor all = To(0);
  for (int i = 0; i < 2; ++i) {  // the second finds nothing
    ASSERT_TRUE(pair[1].UpdateFromInlets({.sources = {&all, 1}, .resets = true}, with_p).ok());
  }
  EXPECT_EQ(pair.tensors[1], (std::vector<double>{11, 18}));
  EXPECT_EQ(pair[1].p(), 1.75);
}

TEST(WindowTest, AGetTakesTheTensorAsItIsNowAndLeavesP) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6});
  pair.tensors[1][0] = 7;
  const Neighbor from_1 = To(1, 2);
  ASSERT_TRUE(pair[0].Get({&from_1, 1}, {.with_p = true, .with_mutex = true}).ok());
  EXPECT_EQ(pair[0].versions()[0].second, 1u);
  const Neighbor all = To(1);
  ASSERT_TRUE(
      pair[0].UpdateFromInlets({.own_weight = 0, .sources = {&all, 1}}, {.with_p = true}).ok());
  EXPECT_EQ(pair.tensors[0], (std::vector<float>{14, 12}));
  EXPECT_EQ(pair[0].p(), 0);
}

TEST(WindowTest, ATargetOfItsOwnLeavesTheTensor) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6});
  std::vector<float> clone(2);
  const Neighbor from_1 = To(1);
  ASSERT_TRUE(pair[0]
                  .UpdateFromInlets({.own_weight = 1,
                                     .sources = {&from_1, 1},
                                     .target = reinterpret_cast<std::byte*>(clone.data())},
                                    {})
                  .ok());
  EXPECT_EQ(clone, (std::vector<float>{2, 4}));
  EXPECT_EQ(pair.tensors[0], (std::vector<float>{1, 2}));
}

TEST(WindowTest, WholeNumbersTakeWholeWeights) {
  Pair<int64_t> pair(DType::kInt64, {1, -2}, {5, 6}, /*zero_init=*/true);
  const Neighbor thrice = To(1, 3);
  ASSERT_TRUE(pair[0].Accumulate(pair.TensorOf(pair.tensors[0]), {&thrice, 1}, 1, {}).ok());
  ASSERT_TRUE(pair[0].Accumulate(pair.TensorOf(pair.tensors[0]), {&thrice, 1}, 1, {}).ok());
  const Neighbor all = To(0);
  ASSERT_TRUE(pair[1].UpdateFromInlets({.sources = {&all, 1}}, {}).ok());
  EXPECT_EQ(pair.tensors[1], (std::vector<int64_t>{11, -6}));
  const Neighbor half = To(1, 0.5);
  ExpectRefused(pair[0].Put(pair.TensorOf(pair.tensors[0]), {&half, 1}, 1, {}), "whole weights");
}

TEST(WindowTest, WhatIsWrongIsRefusedBeforeAnythingIsDone) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6});
  const Neighbor nobody = To(0);
  ExpectRefused(pair[0].Put(pair.TensorOf(pair.tensors[0]), {&nobody, 1}, 1, {}),
                "rank 0 is none of window 'w', which has [1]");
  const Neighbor twice[] = {To(1), To(1)};
  ExpectRefused(pair[0].Put(pair.TensorOf(pair.tensors[0]), twice, 1, {}), "twice");
  std::vector<float> longer(3);
  const Neighbor to_1 = To(1);
  ExpectRefused(pair[0].Put(pair.TensorOf(longer), {&to_1, 1}, 1, {}), "3 elements");
  ExpectRefused(pair[0].Lock(Rank(2), /*of_own=*/false, absl::InfiniteFuture()), "rank 2");
  EXPECT_EQ(pair[1].versions()[0].second, 0u);
}

TEST(WindowTest, AMutexThatIsHeldNamesItsHolderAtTheDeadline) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6});
  ASSERT_TRUE(pair[1].Lock(Rank(0), /*of_own=*/true, absl::InfiniteFuture()).ok());
  EXPECT_FALSE(*pair[0].TryLock(Rank(1), /*of_own=*/false));
  // By the same thread: an error, and no wait for itself.
  const Neighbor to_1 = To(1);
  const absl::Status again =
      pair[0].Put(pair.TensorOf(pair.tensors[0]), {&to_1, 1}, 1, {.with_mutex = true});
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition) << again;
  EXPECT_NE(again.message().find("edge with rank 1"), absl::string_view::npos) << again;
  ASSERT_TRUE(pair[1].Unlock(Rank(0), /*of_own=*/true).ok());
  if (!kSanitized) {  // the thread sanitizer reports such an unlock itself
    EXPECT_EQ(pair[1].Unlock(Rank(0), /*of_own=*/true).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(*pair[0].TryLock(Rank(1), /*of_own=*/false));
  EXPECT_TRUE(pair[0].Unlock(Rank(1), /*of_own=*/false).ok());
}

std::atomic<int> looks = 0;

TEST(WindowTest, TheDeadlineOfAMutexStandsStill) {
  Floats pair(DType::kFloat32, {1, 2}, {5, 6});
  ASSERT_TRUE(pair[1].Lock(Rank(0), /*of_own=*/true, absl::InfiniteFuture()).ok());
  const absl::Time now = Clock::Real().Now();
  Standstill standstill;
  const MovingDeadline deadline(now - absl::Seconds(1), &standstill, now);
  standstill.Begin(now);
  standstill.End(now + absl::Minutes(1));
  looks = 0;
  SetInterruptCheck([] {
    ++looks;
    return absl::OkStatus();
  });
  absl::Status locked;
  std::thread writer([&] {
    locked = pair[0].Lock(Rank(1), /*of_own=*/false, deadline);
    if (locked.ok()) locked = pair[0].Unlock(Rank(1), /*of_own=*/false);
  });
  while (looks == 0)
    std::this_thread::yield();  // it has waited until a deadline without standstill
  EXPECT_TRUE(pair[1].Unlock(Rank(0), /*of_own=*/true).ok());
  writer.join();
  SetInterruptCheck(nullptr);
  EXPECT_EQ(locked, absl::OkStatus());
}

absl::Status MadeOf(std::vector<WindowOptions> options) {
  return CreateWindowsHere(std::move(options)).status();
}

TEST(WindowTest, RanksThatDifferAreNamed) {
  float data[4] = {};
  std::vector<WindowOptions> right(2);
  for (int32_t rank = 0; rank < 2; ++rank) {
    WindowOptions& mine = right[static_cast<size_t>(rank)];
    mine.name = "w";
    mine.tensor = {data + 2 * rank, 2, DType::kFloat32};
    mine.shape = {2};
    mine.sources = {Rank(1 - rank)};
    mine.destinations = {Rank(1 - rank)};
  }
  EXPECT_TRUE(MadeOf(right).ok());
  std::vector<WindowOptions> wrong = right;
  wrong[1].shape = {2, 1};
  ExpectRefused(MadeOf(wrong), "[2] of float32 on rank 0 and [2, 1] of float32 on rank 1");
  wrong = right;
  wrong[1].name = "v";
  ExpectRefused(MadeOf(wrong), "rank 0 makes window 'w' and rank 1 'v'");
  wrong = right;
  wrong[1].sources = {};
  ExpectRefused(MadeOf(wrong), "rank 0 has the edge 0 -> 1 and rank 1 has not");
  wrong = right;
  wrong[0].tensor.dtype = DType::kBool;
  ExpectRefused(MadeOf(wrong), "bool");
}

}  // namespace
}  // namespace pelton
