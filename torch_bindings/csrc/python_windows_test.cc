// One-sided operations as Python calls them, and what becomes of a window's tensor.
#include "torch_bindings/csrc/python_windows.h"

#include <torch/types.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_backends.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

at::Tensor Filled(float value) { return torch::full({2, 3}, value); }
bool Holds(const at::Tensor& tensor, float value) {
  return tensor.equal(torch::full_like(tensor, value));
}

// One of two ranks, each of which writes to the other one. Rank r's tensor is all r + 1.
// Threads: the rank's. Owns: its window.
struct Rank2 {
  explicit Rank2(const std::shared_ptr<Backend>& backend, bool zero_init = true)
      : rank(backend->rank().value()),
        other(1 - rank),
        tensor(Filled(static_cast<float>(rank + 1))),
        windows(backend, {0, 1}),
        window(windows.Create("w", tensor, {other}, {other}, zero_init)) {}

  const int rank;
  const int other;
  at::Tensor tensor;
  PythonWindows windows;
  std::unique_ptr<PythonWindow> window;
};

using Body = std::function<void(Rank2& self)>;

void OnTwoRanks(const Body& body, bool zero_init = true,
                absl::Duration timeout = absl::Seconds(10)) {
  OnRanks(
      2,
      [&](const std::shared_ptr<Backend>& backend) {
        Rank2 self(backend, zero_init);
        body(self);
        self.windows.Barrier();
      },
      timeout);
}

TEST(PythonWindowsTest, APutArrivesByItsWeightAndScalesItsSource) {
  OnTwoRanks([](Rank2& self) {
    if (self.rank == 0) self.window->Put(self.tensor, {{Rank(1), 4}}, 0.5, /*with_p=*/true);
    self.windows.Barrier();
    if (self.rank == 0) {
      EXPECT_TRUE(Holds(self.tensor, 0.5));
      EXPECT_EQ(self.window->p(), 0.5);
      EXPECT_THAT(self.window->Versions(), ElementsAre(Pair(1, 0U)));
      return;
    }
    EXPECT_THAT(self.window->Versions(), ElementsAre(Pair(0, 1U)));
    self.window->Update(0.25, {{Rank(0), 2}}, /*resets=*/false, /*with_p=*/true, std::nullopt);
    EXPECT_TRUE(Holds(self.tensor, 0.25 * 2 + 2 * 4 * 1)) << "in place";
    EXPECT_EQ(self.window->p(), 0.25 * 1 + 2 * 4 * 1);
    EXPECT_THAT(self.window->Versions(), ElementsAre(Pair(0, 0U)));
  });
}

TEST(PythonWindowsTest, WithoutPItStays) {
  OnTwoRanks([](Rank2& self) {
    if (self.rank == 0) self.window->Put(self.tensor, {{Rank(1), 4}}, 0.5, /*with_p=*/false);
    if (self.rank == 0) self.window->Accumulate(Filled(1), {{Rank(1), 4}}, 0.5, /*with_p=*/false);
    self.windows.Barrier();
    self.window->Update(0.25, {{Rank(self.other), 2}}, false, /*with_p=*/false, std::nullopt);
    EXPECT_EQ(self.window->p(), 1);
  });
}

TEST(PythonWindowsTest, WhatIsAddedStaysUntilItIsCollected) {
  OnTwoRanks([](Rank2& self) {
    const at::Tensor source = Filled(8);
    if (self.rank == 0) {
      self.window->Accumulate(source, {{Rank(1), 1}}, 1, false);
      self.window->Accumulate(source, {{Rank(1), 0.5}}, 0.25, /*with_p=*/true);
      EXPECT_TRUE(Holds(source, 2));
      EXPECT_EQ(self.window->p(), 0.25);
    }
    self.windows.Barrier();
    if (self.rank == 0) return;
    const at::Tensor target = Filled(-1);
    self.window->Update(0, {{Rank(0), 1}}, /*resets=*/false, false, target);
    EXPECT_TRUE(Holds(target, 12));
    self.window->Update(0, {{Rank(0), 1}}, /*resets=*/true, false, target);
    EXPECT_TRUE(Holds(target, 12)) << "it had only been read";
    self.window->Update(0, {{Rank(0), 1}}, /*resets=*/true, false, target);
    EXPECT_TRUE(Holds(target, 0));
    EXPECT_TRUE(Holds(self.tensor, 2)) << "the target was another tensor";
  });
}

TEST(PythonWindowsTest, AGetTakesTheNeighboursTensorAsItIsNow) {
  OnTwoRanks([](Rank2& self) {
    self.tensor.add_(10);
    self.windows.Barrier();
    self.window->Get({{Rank(self.other), 2}});
    self.windows.Barrier();
    self.window->Update(0, {{Rank(self.other), 1}}, false, false, std::nullopt);
    EXPECT_TRUE(Holds(self.tensor, static_cast<float>(2 * (10 + self.other + 1))));
  });
}

TEST(PythonWindowsTest, InletsBeginWithTheTensorUnlessTheyBeginWithZero) {
  for (const bool zero_init : {false, true}) {
    OnTwoRanks(
        [zero_init](Rank2& self) {
          const at::Tensor target = Filled(-1);
          self.window->Update(0, {{Rank(self.other), 1}}, false, false, target);
          EXPECT_TRUE(Holds(target, zero_init ? 0.0F : static_cast<float>(self.rank + 1)));
        },
        zero_init);
  }
}

TEST(PythonWindowsTest, NeighboursReadTheMemoryThatTheTensorHadAtFirst) {
  OnTwoRanks([](Rank2& self) {
    // Its storage gets other memory, as by share_memory_(), and then the tensor goes.
    if (self.rank == 0) {
      const at::Tensor other = Filled(77);
      const c10::Storage& storage = self.window->tensor().storage();
      storage.set_data_ptr_noswap(c10::DataPtr(
          other.data_ptr(), new at::Tensor(other),
          [](void* kept) { delete static_cast<at::Tensor*>(kept); }, at::kCPU));
      EXPECT_TRUE(Holds(self.tensor, 77));
      self.tensor = at::Tensor();
      // Whatever was freed is written over.
      for (int i = 0; i < 100; ++i) Filled(-5);
    }
    self.windows.Barrier();
    if (self.rank == 1) {
      self.window->Get({{Rank(0), 1}});
      self.window->Update(0, {{Rank(0), 1}}, false, false, std::nullopt);
      EXPECT_TRUE(Holds(self.tensor, 1));
    }
  });
}

TEST(PythonWindowsTest, ATensorGoesWithItsWindow) {
  bool is_freed = false;
  OnRanks(1, [&](const std::shared_ptr<Backend>& backend) {
    PythonWindows windows(backend, {0});
    std::vector<float> memory(4, 1);
    std::unique_ptr<PythonWindow> window =
        windows.Create("w",
                       torch::from_blob(
                           memory.data(), {4}, [&is_freed](void*) { is_freed = true; }, at::kFloat),
                       {}, {}, true);
    EXPECT_FALSE(is_freed);
    window.reset();
    EXPECT_TRUE(is_freed);
  });
}

TEST(PythonWindowsTest, AWindowOutlivesTheOthersOfItsGroup) {
  OnRanks(2, [](const std::shared_ptr<Backend>& backend) {
    Rank2 self(backend);
    self.windows.Barrier();
    self.windows.Close();
    if (self.rank == 0) self.window->Put(self.tensor, {{Rank(1), 1}}, 1, false);
    EXPECT_THAT(ErrorOf([&] { self.windows.Barrier(); }),
                HasSubstr("the job of these windows has ended"));
    EXPECT_THAT(ErrorOf([&] { self.windows.Create("x", Filled(0), {}, {}, true); }),
                HasSubstr("the job of these windows has ended"));
  });
}

TEST(PythonWindowsTest, AnEdgeHasOneDirection) {
  OnRanks(2, [](const std::shared_ptr<Backend>& backend) {
    const bool writes = backend->rank().value() == 0;
    PythonWindows windows(backend, {0, 1});
    const at::Tensor tensor = Filled(writes ? 5 : 7);
    const std::unique_ptr<PythonWindow> window =
        windows.Create("w", tensor, writes ? std::vector<int32_t>() : std::vector<int32_t>{0},
                       writes ? std::vector<int32_t>{1} : std::vector<int32_t>(), true);
    if (writes) window->Put(tensor, {{Rank(1), 1}}, 1, false);
    windows.Barrier();
    if (!writes) {
      window->Update(0, {{Rank(0), 1}}, false, false, std::nullopt);
      EXPECT_TRUE(Holds(tensor, 5));
      EXPECT_THAT(ErrorOf([&] {
                    window->Put(tensor, {{Rank(0), 1}}, 1, false);
                  }),
                  HasSubstr("win_put"));
    }
    windows.Barrier();
  });
}

TEST(PythonWindowsTest, NeighboursMayBeGivenInAnyOrder) {
  OnRanks(3, [](const std::shared_ptr<Backend>& backend) {
    const int rank = backend->rank().value();
    PythonWindows windows(backend, {0, 1, 2});
    const at::Tensor tensor = Filled(static_cast<float>(rank + 1));
    const std::vector<int32_t> others = {(rank + 2) % 3, (rank + 1) % 3};
    const std::unique_ptr<PythonWindow> window =
        windows.Create("w", tensor, others, others, /*zero_init=*/true);
    PythonWindow::Neighbors weights;
    for (int32_t other = 0; other < 3; ++other) {
      if (other != rank) weights.push_back({Rank(other), 1});
    }
    window->Put(tensor, weights, 1, false);
    windows.Barrier();
    window->Update(0, weights, false, false, std::nullopt);
    EXPECT_TRUE(Holds(tensor, static_cast<float>(6 - (rank + 1))));
    windows.Barrier();
  });
}

TEST(PythonWindowsTest, AnErrorNamesItsCallAndItsWindow) {
  OnTwoRanks([](Rank2& self) {
    const at::Tensor crossed = torch::zeros({3, 2}).t();
    const auto put = [&](const at::Tensor& source, int32_t to) {
      return ErrorOf([&] { self.window->Put(source, {{Rank(to), 1}}, 1, false); });
    };
    EXPECT_THAT(put(self.tensor, 7), HasSubstr("INVALID_ARGUMENT: win_put of window 'w': "));
    EXPECT_THAT(put(crossed, self.other), HasSubstr("tensor: is not contiguous"));
    EXPECT_THAT(ErrorOf([&] {
                  self.window->Accumulate(self.tensor, {{Rank(7), 1}}, 1, false);
                }),
                HasSubstr("win_accumulate of window 'w': "));
    EXPECT_THAT(ErrorOf([&] {
                  self.window->Get({{Rank(7), 1}});
                }),
                HasSubstr("win_get of window 'w': "));
    EXPECT_THAT(ErrorOf([&] {
                  self.window->Update(1, {{Rank(7), 1}}, false, false, std::nullopt);
                }),
                HasSubstr("win_update of window 'w': "));
    EXPECT_THAT(ErrorOf([&] { self.window->Update(1, {}, false, false, crossed); }),
                HasSubstr("target: is not contiguous"));
    EXPECT_THAT(ErrorOf([&] { self.window->Lock(7, true); }),
                HasSubstr("win_mutex of window 'w': "));
    EXPECT_THAT(ErrorOf([&] { self.window->Unlock(self.other, true); }),
                HasSubstr("FAILED_PRECONDITION: win_mutex of window 'w': "));
  });
}

TEST(PythonWindowsTest, ATensorThatOneRankCannotGiveIsAnErrorOnAllRanks) {
  OnRanks(2, [](const std::shared_ptr<Backend>& backend) {
    const bool is_bad = backend->rank().value() == 1;
    PythonWindows windows(backend, {0, 1});
    const at::Tensor tensor = is_bad ? torch::zeros({3, 2}).t() : torch::zeros({2, 3});
    EXPECT_THAT(ErrorOf([&] { windows.Create("w", tensor, {}, {}, true); }),
                AllOf(HasSubstr("win_create"), HasSubstr("tensor: is not contiguous")));
    EXPECT_NE(windows.Create("w", Filled(0), {}, {}, true), nullptr) << "the ranks are in step";
  });
}

TEST(PythonWindowsTest, AMutexIsOfOneEdgeAndIsWaitedForUntilTheTimeout) {
  absl::Notification locked;
  absl::Notification looked;
  OnTwoRanks(
      [&](Rank2& self) {
        if (self.rank == 0) {
          self.window->Lock(1, /*of_own=*/false);
          locked.Notify();
          EXPECT_TRUE(looked.WaitForNotificationWithTimeout(absl::Seconds(20)))
              << "rank 1 has not looked";
          self.window->Unlock(1, false);
          return;
        }
        ASSERT_TRUE(locked.WaitForNotificationWithTimeout(absl::Seconds(20)))
            << "rank 0 has not locked the window";
        EXPECT_EQ(ErrorOf([&] { self.window->Lock(0, /*of_own=*/false); }), "none")
            << "the other edge's is another one";
        self.window->Unlock(0, false);
        EXPECT_THAT(
            ErrorOf([&] { self.window->Lock(0, /*of_own=*/true); }),
            AllOf(HasSubstr("DEADLINE_EXCEEDED: win_mutex of window 'w'"), HasSubstr("rank 0")));
        looked.Notify();
        EXPECT_EQ(ErrorOf([&] { self.window->Lock(0, true); }), "none");
        self.window->Unlock(0, true);
      },
      /*zero_init=*/true, /*timeout=*/absl::Seconds(4));
}

// The stand-in for CUDA maps the host's memory as a GPU does that shares its addresses, so that a
// tensor of the host serves for one of a GPU's. Threads: one. Owns: the environment's variable.
class MappedMemoryTest : public ::testing::Test {
 protected:
  MappedMemoryTest() {
    setenv("PELTON_CUDART_LIBRARY", stand_in::LibraryPath().c_str(), 1);
    stand_in_.reset();
  }
  ~MappedMemoryTest() override {
    EXPECT_EQ(stand_in_.open_count(), 0) << "memory stays registered";
    unsetenv("PELTON_CUDART_LIBRARY");
  }

  const stand_in::StandIn& stand_in_ = stand_in::StandIn::Get();
};

TEST_F(MappedMemoryTest, ATensorMovesWithItsViewsToWholePagesOfSharedMemory) {
  at::Tensor tensor = torch::arange(6, at::kFloat).view({2, 3});
  const at::Tensor view = tensor[1];
  absl::StatusOr<at::Tensor> host = MoveToMappedMemory(tensor);
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ(host->sizes(), tensor.sizes());
  EXPECT_TRUE(host->equal(torch::arange(6, at::kFloat).view({2, 3})));
  EXPECT_EQ(host->data_ptr(), tensor.data_ptr());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host->data_ptr()) % 4096, 0U);
  EXPECT_NE(Locate(host->data_ptr(), host->nbytes()).region, kPrivateRegion);
  (*host)[1][2] = 9;
  EXPECT_EQ(view[2].item<float>(), 9) << "a view of it moves along";
  EXPECT_EQ(stand_in_.open_count(), 1);
}

TEST_F(MappedMemoryTest, ATensorThatLiesThereStays) {
  at::Tensor tensor = torch::ones({5000});
  const absl::StatusOr<at::Tensor> first = MoveToMappedMemory(tensor);
  const absl::StatusOr<at::Tensor> second = MoveToMappedMemory(tensor);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->data_ptr(), first->data_ptr());
  EXPECT_EQ(stand_in_.open_count(), 1);
}

TEST_F(MappedMemoryTest, BothTensorsKeepTheMemory) {
  at::Tensor tensor = torch::ones({3});
  at::Tensor host = *MoveToMappedMemory(tensor);
  tensor = at::Tensor();
  EXPECT_EQ(stand_in_.open_count(), 1);
  EXPECT_TRUE(Holds(host, 1));
  host = at::Tensor();
  EXPECT_EQ(stand_in_.open_count(), 0);
}

TEST_F(MappedMemoryTest, APartOfOtherMemoryIsRefusedAndStaysWhereItIs) {
  const at::Tensor whole = torch::ones({4});
  for (const at::Tensor& part : {whole.slice(0, 1, 4), whole.slice(0, 0, 3)}) {
    const void* const before = part.data_ptr();
    EXPECT_THAT(MoveToMappedMemory(part).status().ToString(),
                HasSubstr("INVALID_ARGUMENT: tensor: is a part of other memory of the GPU"));
    EXPECT_EQ(part.data_ptr(), before);
  }
  EXPECT_THAT(MoveToMappedMemory(torch::ones({2, 3}).t()).status().ToString(),
              HasSubstr("tensor: is not contiguous"));
}

TEST_F(MappedMemoryTest, AnErrorOfTheRuntimeLeavesTheTensorAndNothingRegistered) {
  const at::Tensor tensor = torch::ones({4});
  const void* const before = tensor.data_ptr();
  stand_in_.fail("cudaHostRegister", 0, 2);
  EXPECT_THAT(MoveToMappedMemory(tensor).status().ToString(), HasSubstr("cudaHostRegister"));
  EXPECT_EQ(tensor.data_ptr(), before);
  EXPECT_EQ(stand_in_.open_count(), 0);
}

}  // namespace
}  // namespace pelton::torch_bindings
