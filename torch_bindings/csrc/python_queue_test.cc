// Operations that Python starts and waits for later, with a backend of each rank.
#include "torch_bindings/csrc/python_queue.h"

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "comm/group.h"
#include "core/base/ids.h"
#include "core/pipeline/weight_table.h"
#include "core/plan/round_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/test_backends.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using How = PythonQueue::Run;
using Handle = PythonQueue::Handle;

constexpr int kSum = 0;
constexpr int kAvg = 10;

at::Tensor Filled(float value, at::IntArrayRef sizes = {2, 3}) { return torch::full(sizes, value); }
bool Holds(const at::Tensor& tensor, float value) {
  return tensor.equal(torch::full_like(tensor, value));
}
How Waiting() { return {}; }
How Named(std::string name) { return {.name = std::move(name), .waits = false}; }
How Unnamed() { return {.name = {}, .waits = false}; }

// x becomes own * x + weight * that of each of `peers`, to which this rank sends too.
PythonQueue::Table TableOf(double own, const std::vector<int>& peers, double weight) {
  Neighborhood neighborhood{.own = own};
  for (const int peer : peers) {
    neighborhood.sources.push_back({Rank(peer), weight});
    neighborhood.destinations.push_back({Rank(peer), 1});
  }
  return *WeightTable::Create(std::move(neighborhood));
}

using Body = std::function<void(PythonQueue& queue, int rank)>;

void OnQueues(int world_size, const Body& body) {
  OnRanks(world_size, [&](const std::shared_ptr<Backend>& backend) {
    PythonQueue queue(backend, Group::World(WorldSize(world_size)), at::kCPU);
    body(queue, backend->rank().value());
  });
}

// Of calls that are refused before they need any other rank.
void Alone(const std::function<void(PythonQueue& queue)>& body) {
  OnQueues(1, [&](PythonQueue& queue, int) { body(queue); });
}

TEST(PythonQueueTest, AReductionMakesANewTensorOrWritesTheGivenOne) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const at::Tensor mine = Filled(static_cast<float>(1 + 2 * rank));
    const at::Tensor mean = queue.AllReduce(Waiting(), mine, kAvg, false)->Wait();
    EXPECT_TRUE(Holds(mean, 2));
    EXPECT_TRUE(Holds(mine, static_cast<float>(1 + 2 * rank))) << "the input stays";

    const at::Tensor into = Filled(-1);
    EXPECT_TRUE(queue.AllReduce(Waiting(), mine, kSum, false, into)->Wait().is_same(into));
    EXPECT_TRUE(Holds(into, 4));

    EXPECT_TRUE(queue.AllReduce(Waiting(), mine, kSum, true)->Wait().is_same(mine));
    EXPECT_TRUE(Holds(mine, 4));
  });
}

TEST(PythonQueueTest, AResultHasNoGraphAndAViewIsReadAndWrittenInItsOrder) {
  OnQueues(2, [](PythonQueue& queue, int) {
    const at::Tensor whole = torch::arange(6, at::kFloat).view({2, 3});
    const at::Tensor parameter = whole.clone().set_requires_grad(true);
    const at::Tensor sum = queue.AllReduce(Waiting(), parameter.t(), kSum, false)->Wait();
    EXPECT_FALSE(sum.requires_grad());
    EXPECT_TRUE(sum.equal(whole.t() * 2));
    queue.AllReduce(Waiting(), whole.t(), kSum, true)->Wait();
    EXPECT_TRUE(whole.equal(torch::arange(6, at::kFloat).view({2, 3}) * 2));
  });
}

TEST(PythonQueueTest, ABroadcastIsOfTheRootsTensorAndLeavesTheOthers) {
  OnQueues(3, [](PythonQueue& queue, int rank) {
    const at::Tensor mine = Filled(static_cast<float>(rank));
    EXPECT_TRUE(Holds(queue.Broadcast(Waiting(), mine, 1, false)->Wait(), 1));
    EXPECT_TRUE(Holds(mine, static_cast<float>(rank)));
    EXPECT_TRUE(queue.Broadcast(Waiting(), mine, 2, true)->Wait().is_same(mine));
    EXPECT_TRUE(Holds(mine, 2));
  });
}

TEST(PythonQueueTest, AGatherPutsPartsOfAnyLengthInTheOrderOfTheRanks) {
  OnQueues(3, [](PythonQueue& queue, int rank) {
    const at::Tensor mine = Filled(static_cast<float>(rank), {2 - rank, 2});
    // The next call does not go before the parts of this one.
    const Handle gather = queue.AllGather(Unnamed(), mine);
    const Handle sum = queue.AllReduce(Unnamed(), Filled(1), kSum, false);
    EXPECT_TRUE(gather->Wait().equal(torch::cat({Filled(0, {2, 2}), Filled(1, {1, 2})})));
    EXPECT_TRUE(Holds(sum->Wait(), 3));
  });
}

TEST(PythonQueueTest, AHandleIsDoneOnceTheOtherRankHasCome) {
  absl::Notification looked;
  OnQueues(2, [&](PythonQueue& queue, int rank) {
    if (rank == 1) {
      ASSERT_TRUE(looked.WaitForNotificationWithTimeout(absl::Seconds(20)))
          << "rank 0 has not looked";
    }
    const Handle handle = queue.AllReduce(Unnamed(), Filled(1), kSum, false);
    if (rank == 0) {
      EXPECT_FALSE(handle->done());
      looked.Notify();
    }
    EXPECT_TRUE(Holds(handle->Wait(), 2));
    EXPECT_TRUE(handle->done());
    EXPECT_TRUE(queue.AllReduce(Waiting(), Filled(1), kSum, false)->done())
        << "of a run that waits";
  });
}

TEST(PythonQueueTest, CollectivesOfOtherNamesDoNotMeet) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const Handle handle =
        queue.AllReduce(Named(rank == 0 ? "loss" : "accuracy"), Filled(1), kSum, false);
    EXPECT_THAT(ErrorOf([&] { handle->Wait(); }),
                AllOf(HasSubstr("INVALID_ARGUMENT: allreduce '"),
                      HasSubstr(rank == 0 ? "'loss'" : "'accuracy'")));
  });
}

TEST(PythonQueueTest, ShapesOfOneSizeThatDifferAreAnErrorOnBothRanks) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const at::Tensor mine = rank == 0 ? Filled(1, {2, 3}) : Filled(1, {3, 2});
    const Handle handle = queue.AllReduce(Unnamed(), mine, kSum, false);
    EXPECT_THAT(ErrorOf([&] { handle->Wait(); }),
                HasSubstr(rank == 0 ? "this rank's is [2, 3]" : "this rank's is [3, 2]"));
  });
}

TEST(PythonQueueTest, ANameHasTheSameNumberOnEveryMachine) {
  EXPECT_EQ(NumberOf("fc.weight"), 167454887);
  EXPECT_EQ(NumberOf(""), 200449252);
  for (int i = 0; i < 100; ++i) {
    const int32_t number = NumberOf(std::to_string(i));
    EXPECT_GE(number, 0);
    EXPECT_LT(number, kEvaluationBit) << "the bit says in which mode a round is";
  }
}

TEST(PythonQueueTest, NeighboursAverageByTheTablesWeights) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const at::Tensor mine = Filled(static_cast<float>(8 + 8 * rank));
    const auto table = TableOf(0.5, {1 - rank}, rank == 0 ? 0.25 : 0.125);
    const at::Tensor result = queue.NeighborAllReduce(Waiting(), mine, table)->Wait();
    EXPECT_TRUE(Holds(result, rank == 0 ? 4 + 4 : 8 + 1));
    EXPECT_TRUE(Holds(mine, static_cast<float>(8 + 8 * rank)));
    const at::Tensor into = Filled(0);
    EXPECT_TRUE(queue.NeighborAllReduce(Waiting(), mine, table, into)->Wait().is_same(into));
    EXPECT_TRUE(into.equal(result));
  });
}

TEST(PythonQueueTest, NeighboursMeetByNameInWhateverOrderTheyCall) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const auto table = TableOf(1, {1 - rank}, 1);
    std::vector<std::string> order = {"a", "b"};
    if (rank == 1) std::swap(order[0], order[1]);
    std::vector<Handle> handles;
    for (const std::string& name : order) {
      const float value = (name == "a" ? 1.0F : 2.0F) * (rank == 0 ? 1.0F : 10.0F);
      handles.push_back(queue.NeighborAllReduce(Named(name), Filled(value), table));
    }
    for (size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(Holds(handles[i]->Wait(), order[i] == "a" ? 11 : 22));
  });
}

TEST(PythonQueueTest, OnlyNeighboursWithoutNamesMeetInTheOrderOfTheirCalls) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const auto table = TableOf(0, {1 - rank}, 1);
    const float base = rank == 0 ? 1.0F : 10.0F;
    std::vector<Handle> handles;
    handles.push_back(queue.NeighborAllReduce(Unnamed(), Filled(base), table));
    // A named one between them is in no order with them.
    if (rank == 0) handles.push_back(queue.NeighborAllReduce(Named("n"), Filled(7), table));
    handles.push_back(queue.NeighborAllReduce(Unnamed(), Filled(2 * base), table));
    if (rank == 1) handles.push_back(queue.NeighborAllReduce(Named("n"), Filled(70), table));
    const float other = rank == 0 ? 10.0F : 1.0F;
    EXPECT_TRUE(Holds(handles[0]->Wait(), other));
    EXPECT_TRUE(Holds(handles[rank == 0 ? 2 : 1]->Wait(), 2 * other));
    EXPECT_TRUE(Holds(handles[rank == 0 ? 1 : 2]->Wait(), rank == 0 ? 70 : 7));
  });
}

TEST(PythonQueueTest, NeighboursThatGiveOtherShapesBothGetAnError) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    const auto table = TableOf(1, {1 - rank}, 1);
    const at::Tensor mine = rank == 0 ? Filled(1, {2, 3}) : Filled(1, {6, 1});
    const Handle handle = queue.NeighborAllReduce(Unnamed(), mine, table);
    EXPECT_THAT(ErrorOf([&] { handle->Wait(); }), HasSubstr("INVALID_ARGUMENT"));
  });
}

TEST(PythonQueueTest, AGatherOfNeighboursTellsWhichRowsAreWhose) {
  OnQueues(3, [](PythonQueue& queue, int rank) {
    // Two in flight, and their elements need tags that no other has.
    const auto rows = [](int of, float scale) {
      return Filled(scale * static_cast<float>(of), {of + 1, 2});
    };
    std::vector<int> peers;
    for (int peer = 0; peer < 3; ++peer) {
      if (peer != rank) peers.push_back(peer);
    }
    const auto table = TableOf(1, peers, 1);
    const Handle first = queue.NeighborAllGather(Unnamed(), rows(rank, 1), table);
    const Handle second = queue.NeighborAllGather(Unnamed(), rows(rank, 10), table);
    EXPECT_TRUE(second->Wait().equal(torch::cat({rows(peers[0], 10), rows(peers[1], 10)})));
    EXPECT_TRUE(first->Wait().equal(torch::cat({rows(peers[0], 1), rows(peers[1], 1)})));
    EXPECT_THAT(first->lengths(), ElementsAre(peers[0] + 1, peers[1] + 1));
  });
}

// Ranks 0 and 1 on one machine, 2 and 3 on the other, whose neighbours are 0 and 2, and 1 and 3.
// Threads: the ranks'. Owns: a rank's queues.
struct TwoMachines {
  explicit TwoMachines(const std::shared_ptr<Backend>& backend)
      : rank(backend->rank().value()),
        outer(backend, Group::World(WorldSize(4)), at::kCPU),
        inner(backend, Machine(), at::kCPU),
        table(TableOf(0.5, {(rank + 2) % 4}, 0.5)) {}
  Group Machine() const {
    const int first = rank < 2 ? 0 : 2;
    return {.members = {Rank(first), Rank(first + 1)}, .generation = Generation(1)};
  }
  Handle Begin(const How& run, const at::Tensor& tensor, const PythonQueue::Target& into = {}) {
    return outer.HierarchicalNeighborAllReduce(run, tensor, table, inner, into);
  }

  const int rank;
  PythonQueue outer;
  PythonQueue inner;
  const PythonQueue::Table table;
};

TEST(PythonQueueTest, MachinesAverageTheirMeans) {
  OnRanks(4, [](const std::shared_ptr<Backend>& backend) {
    TwoMachines machines(backend);
    // Means 2 and 10.
    const float mine = std::vector<float>{1, 3, 8, 12}[static_cast<size_t>(machines.rank)];
    const Handle first = machines.Begin(Unnamed(), Filled(mine));
    const at::Tensor into = Filled(0);
    const Handle second = machines.Begin(Unnamed(), Filled(2 * mine), into);
    const Handle named = machines.Begin(Named("w"), Filled(4 * mine));
    EXPECT_TRUE(Holds(first->Wait(), 6));
    EXPECT_TRUE(second->Wait().is_same(into));
    EXPECT_TRUE(Holds(into, 12));
    EXPECT_TRUE(Holds(named->Wait(), 24));
  });
}

// Rank 0 begins the plain operation while its machine's mean is under way, ranks 2 and 3 after it.
TEST(PythonQueueTest, OperationsMayGoByWhileAMachinesMeanIsUnderWay) {
  absl::Notification begun;
  OnRanks(4, [&](const std::shared_ptr<Backend>& backend) {
    TwoMachines machines(backend);
    const std::vector<float> values = {1, 3, 8, 12};
    const int rank = machines.rank;
    const float mine = values[static_cast<size_t>(rank)];
    if (rank == 1) {
      ASSERT_TRUE(begun.WaitForNotificationWithTimeout(absl::Seconds(20)))
          << "rank 0 has not begun";
    }
    const Handle mean = machines.Begin(Unnamed(), Filled(mine));
    if (rank >= 2) machines.inner.AllReduce(Waiting(), Filled(1), kSum, false);
    const Handle plain = machines.outer.NeighborAllReduce(Unnamed(), Filled(mine), machines.table);
    if (rank == 0) begun.Notify();
    EXPECT_TRUE(Holds(mean->Wait(), 6));
    const float other = values[static_cast<size_t>((rank + 2) % 4)];
    EXPECT_TRUE(Holds(plain->Wait(), (mine + other) / 2));
  });
}

TEST(PythonQueueTest, WhereAMachinesMeanFailsItsNeighboursAreTold) {
  OnRanks(4, [](const std::shared_ptr<Backend>& backend) {
    TwoMachines machines(backend);
    const Handle handle =
        machines.Begin(Unnamed(), machines.rank == 1 ? Filled(1, {3, 2}) : Filled(1, {2, 3}));
    const std::string error = ErrorOf([&] { handle->Wait(); });
    if (machines.rank < 2) {
      EXPECT_THAT(error, HasSubstr("shapes of the tensors differ"));
    } else {
      EXPECT_THAT(error, HasSubstr("rank " + std::to_string(machines.rank - 2) +
                                   " has failed in an earlier stage"));
    }
    // What tells the neighbours goes by the queues, which end with this function.
    EXPECT_EQ(Barrier(backend->control(), "told", Soon()), absl::OkStatus());
  });
}

TEST(PythonQueueTest, ATargetThatIsUnlikeItsTensorIsRefused) {
  Alone([](PythonQueue& queue) {
    const char* const refused =
        "INVALID_ARGUMENT: allreduce 'n': target: has another shape, type or device than the "
        "tensor";
    for (const at::Tensor& target :
         {Filled(0, {3, 2}), Filled(0).to(at::kDouble), torch::empty({2, 3}, at::kMeta)}) {
      EXPECT_EQ(ErrorOf([&] { queue.AllReduce(Named("n"), Filled(1), kSum, false, target); }),
                refused);
    }
  });
}

TEST(PythonQueueTest, ACallIsShownByTheNameThatItsCallerGivesIt) {
  Alone([](PythonQueue& queue) {
    const How run = {.name = "x", .waits = true, .shown_as = "win_fence"};
    EXPECT_EQ(ErrorOf([&] { queue.Broadcast(run, Filled(1), 1, false); }),
              "INVALID_ARGUMENT: win_fence 'x': root_rank: 1 is not in [0, 1)");
    EXPECT_EQ(ErrorOf([&] { queue.Broadcast(Waiting(), Filled(1), -1, false); }),
              "INVALID_ARGUMENT: broadcast: root_rank: -1 is not in [0, 1)");
  });
}

TEST(PythonQueueTest, WhatIsGatheredIsOnTheHostAndHasOneToTwelveDimensions) {
  Alone([](PythonQueue& queue) {
    const auto error_of = [&](const at::Tensor& tensor) {
      return ErrorOf([&] { queue.AllGather(Waiting(), tensor); });
    };
    EXPECT_EQ(
        error_of(torch::zeros({})),
        "INVALID_ARGUMENT: allgather: tensor: has 0 dimensions; what is gathered has 1 to 12");
    EXPECT_THAT(error_of(torch::zeros(std::vector<int64_t>(13, 1))), HasSubstr("13 dimensions"));
    EXPECT_EQ(error_of(torch::zeros(std::vector<int64_t>(12, 1))), "none");
    EXPECT_EQ(error_of(torch::empty({2}, at::kMeta)),
              "INVALID_ARGUMENT: allgather: tensor: is on meta; must be on the CPU");
  });
}

TEST(PythonQueueTest, ABarrierWaitsForAllRanksUntilItsOwnTimeout) {
  absl::Notification timed_out;
  OnQueues(2, [&](PythonQueue& queue, int rank) {
    queue.Barrier(absl::Seconds(10));
    if (rank == 0) {
      EXPECT_THAT(ErrorOf([&] { queue.Barrier(absl::Milliseconds(50)); }),
                  HasSubstr("DEADLINE_EXCEEDED: barrier"));
      timed_out.Notify();
    } else {
      EXPECT_TRUE(timed_out.WaitForNotificationWithTimeout(absl::Seconds(20)));
    }
  });
}

TEST(PythonQueueTest, RanksThatLeaveTogetherLeaveWell) {
  OnQueues(2, [](PythonQueue& queue, int) {
    EXPECT_EQ(ErrorOf([&] { queue.Leave("end", "rank 0 left", absl::Seconds(10)); }), "none");
  });
}

TEST(PythonQueueTest, AnotherRanksBarrierIsNoLeave) {
  OnQueues(2, [](PythonQueue& queue, int rank) {
    EXPECT_THAT(ErrorOf([&] {
                  if (rank == 0) queue.Leave("end", "rank 0 left", absl::Seconds(10));
                  if (rank == 1) queue.Barrier(absl::Seconds(10));
                }),
                HasSubstr("INVALID_ARGUMENT"));
  });
}

TEST(PythonQueueTest, WhoeverIsNotWaitedForAnyLongerIsToldWhy) {
  absl::Notification timed_out;
  OnQueues(2, [&](PythonQueue& queue, int rank) {
    if (rank == 0) {
      EXPECT_THAT(
          ErrorOf([&] { queue.Leave("end", "rank 0 left after 50 ms", absl::Milliseconds(50)); }),
          HasSubstr("UNAVAILABLE: shutdown: rank 0 left after 50 ms"));
      timed_out.Notify();
    } else {
      EXPECT_TRUE(timed_out.WaitForNotificationWithTimeout(absl::Seconds(20)));
      EXPECT_THAT(ErrorOf([&] { queue.AllReduce(Waiting(), Filled(1), kSum, false); }),
                  HasSubstr("rank 0 left after 50 ms"));
    }
  });
}

TEST(PythonQueueTest, OnceClosedNothingRuns) {
  Alone([](PythonQueue& queue) {
    queue.Close();
    EXPECT_NE(ErrorOf([&] { queue.AllReduce(Waiting(), Filled(1), kSum, false); }), "none");
    EXPECT_NE(ErrorOf([&] { queue.Barrier(absl::Seconds(1)); }), "none");
    queue.Close();
  });
}

TEST(PythonQueueTest, ASignalHandlerStartsNothing) {
  Alone([](PythonQueue& queue) {
    {
      const SignalScope handler;
      EXPECT_THAT(ErrorOf([&] { queue.AllReduce(Waiting(), Filled(1), kSum, false); }),
                  HasSubstr("called by a signal handler"));
    }
    EXPECT_TRUE(Holds(queue.AllReduce(Waiting(), Filled(1), kSum, false)->Wait(), 1));
  });
}

TEST(PythonQueueTest, ADeviceThatIsNeitherTheHostNorAGpuIsRefused) {
  OnRanks(1, [](const std::shared_ptr<Backend>& backend) {
    EXPECT_THAT(
        ErrorOf([&] { const PythonQueue queue(backend, Group::World(WorldSize(1)), at::kMeta); }),
        HasSubstr("the tensor is on meta"));
  });
}

}  // namespace
}  // namespace pelton::torch_bindings
