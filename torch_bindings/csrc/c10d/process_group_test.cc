// What PyTorch's calls on a process group give to each rank, and what they refuse.
#include "torch_bindings/csrc/c10d/process_group.h"

#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "comm/group.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/moving_deadline.h"
#include "core/memory/region.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/test_errors.h"
#include "torch_bindings/csrc/test_interpreter.h"

namespace pelton::torch_bindings {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using Work = ProcessGroup::Work;
using Op = ::c10d::ReduceOp;

// A process group gives Python's lock away.
[[maybe_unused]] const auto* const kInterpreter =
    ::testing::AddGlobalTestEnvironment(new TestInterpreter);

constexpr int kRanks = 3;

// Rank r has (100 r + 0, 100 r + 1, ...).
at::Tensor Numbers(int rank, int64_t count) {
  return torch::arange(count, at::kFloat) + 100.0F * static_cast<float>(rank);
}
at::Tensor Blank(int64_t count) { return torch::full({count}, -1.0F); }
bool Holds(const at::Tensor& tensor, const std::vector<float>& values) {
  return tensor.equal(torch::tensor(values));
}
// Threads: the test's and those of the lanes. Owns: all ranks.
class ProcessGroupTest : public ::testing::Test {
 protected:
  ProcessGroupTest() {
    auto communicators = *fabric_.OpenAll(CommunicatorId(3), Group::World(WorldSize(kRanks)));
    for (auto& communicator : communicators) {
      groups_.push_back(c10::make_intrusive<ProcessGroup>(
          std::shared_ptr<Communicator>(std::move(communicator)), standstill_,
          GroupNames{"dp", "pelton"}, milliseconds(20'000), [this] { ++closed_; }));
    }
  }

  ProcessGroup& group(int rank) { return *groups_[static_cast<size_t>(rank)]; }
  // Has every rank begin its call, and waits for all.
  void RunAll(const std::function<Work(ProcessGroup& group, int rank)>& call) {
    std::vector<Work> works;
    for (int rank = 0; rank < kRanks; ++rank) works.push_back(call(group(rank), rank));
    for (const Work& work : works) EXPECT_EQ(ErrorOf([&] { work->wait(); }), "none");
  }

  SimFabric fabric_{WorldSize(kRanks)};
  const Standstill standstill_;
  int closed_ = 0;
  std::vector<c10::intrusive_ptr<ProcessGroup>> groups_;
};

TEST_F(ProcessGroupTest, ReductionsGoToAllRanksOrToTheRoot) {
  Lists tensors;
  for (int rank = 0; rank < kRanks; ++rank) tensors.push_back({Numbers(rank, 2)});
  RunAll([&](ProcessGroup& group, int rank) {
    return group.allreduce(tensors[static_cast<size_t>(rank)], {.reduceOp = Op::MAX});
  });
  for (const Tensors& tensor : tensors) EXPECT_TRUE(Holds(tensor[0], {200, 201}));

  for (size_t rank = 0; rank < kRanks; ++rank) tensors[rank] = {Numbers(static_cast<int>(rank), 2)};
  RunAll([&](ProcessGroup& group, int rank) {
    return group.reduce(tensors[static_cast<size_t>(rank)], {.reduceOp = Op::SUM, .rootRank = 1});
  });
  EXPECT_TRUE(Holds(tensors[1][0], {300, 303}));
  EXPECT_TRUE(Holds(tensors[0][0], {0, 1})) << "only the root's is written";
  EXPECT_TRUE(Holds(tensors[2][0], {200, 201}));
}

TEST_F(ProcessGroupTest, ABroadcastIsOfTheRoots) {
  Lists tensors;
  for (int rank = 0; rank < kRanks; ++rank) tensors.push_back({Numbers(rank, 6).view({2, 3}).t()});
  RunAll([&](ProcessGroup& group, int rank) {
    return group.broadcast(tensors[static_cast<size_t>(rank)], {.rootRank = 2});
  });
  for (const Tensors& tensor : tensors) {
    EXPECT_TRUE(tensor[0].equal(Numbers(2, 6).view({2, 3}).t()));
  }
}

TEST_F(ProcessGroupTest, TensorsOfOneCallAreEachReduced) {
  Lists tensors;
  for (int rank = 0; rank < kRanks; ++rank) {
    tensors.push_back({Numbers(rank, 1), Numbers(rank, 2) + 5});
  }
  ::c10d::AllreduceCoalescedOptions options;
  options.reduceOp = Op::AVG;
  RunAll([&](ProcessGroup& group, int rank) {
    return group.allreduce_coalesced(tensors[static_cast<size_t>(rank)], options);
  });
  for (const Tensors& tensor : tensors) {
    EXPECT_TRUE(Holds(tensor[0], {100}));
    EXPECT_TRUE(Holds(tensor[1], {105, 106}));
  }
}

TEST_F(ProcessGroupTest, AGatherFillsListsOfAnyLengths) {
  for (const bool equal : {true, false}) {
    const auto length = [equal](int rank) { return equal ? 2 : rank + 1; };
    std::vector<Lists> outputs(kRanks);
    Lists inputs;
    for (int rank = 0; rank < kRanks; ++rank) {
      inputs.push_back({Numbers(rank, length(rank))});
      outputs[static_cast<size_t>(rank)].emplace_back();
      for (int of = 0; of < kRanks; ++of) {
        outputs[static_cast<size_t>(rank)][0].push_back(Blank(length(of)));
      }
    }
    RunAll([&](ProcessGroup& group, int rank) {
      const auto at = static_cast<size_t>(rank);
      return group.allgather(outputs[at], inputs[at], {});
    });
    for (const Lists& lists : outputs) {
      for (int of = 0; of < kRanks; ++of) {
        EXPECT_TRUE(lists[0][static_cast<size_t>(of)].equal(Numbers(of, length(of))))
            << of << ", equal: " << equal;
      }
    }
  }
}

TEST_F(ProcessGroupTest, AGatherFillsOneTensorOrSeveral) {
  Tensors single;
  Lists wholes;
  std::vector<Lists> lists;
  for (int rank = 0; rank < kRanks; ++rank) {
    single.push_back(Blank(6));
    wholes.push_back({Blank(6), Blank(3)});
    lists.push_back({});
    for (int of = 0; of < kRanks; ++of) lists.back().push_back({Blank(2), Blank(1)});
  }
  Lists inputs;
  for (int rank = 0; rank < kRanks; ++rank) {
    inputs.push_back({Numbers(rank, 2), Numbers(rank, 1) + 7});
  }
  const std::vector<float> first = {0, 1, 100, 101, 200, 201};
  const std::vector<float> second = {7, 107, 207};
  RunAll([&](ProcessGroup& group, int rank) {
    const auto at = static_cast<size_t>(rank);
    return group._allgather_base(single[at], inputs[at][0], {});
  });
  RunAll([&](ProcessGroup& group, int rank) {
    const auto at = static_cast<size_t>(rank);
    return group.allgather_into_tensor_coalesced(wholes[at], inputs[at], {});
  });
  RunAll([&](ProcessGroup& group, int rank) {
    const auto at = static_cast<size_t>(rank);
    return group.allgather_coalesced(lists[at], inputs[at], {});
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(Holds(single[rank], first));
    EXPECT_TRUE(Holds(wholes[rank][0], first));
    EXPECT_TRUE(Holds(wholes[rank][1], second));
    for (size_t of = 0; of < kRanks; ++of) {
      EXPECT_TRUE(lists[rank][of][0].equal(Numbers(static_cast<int>(of), 2)));
      EXPECT_TRUE(lists[rank][of][1].equal(Numbers(static_cast<int>(of), 1) + 7));
    }
  }
}

TEST_F(ProcessGroupTest, AReductionGivesEachRankItsPartOfListsOfAnyLengths) {
  for (const bool equal : {true, false}) {
    const auto length = [equal](int rank) { return equal ? 2 : rank + 1; };
    Lists outputs;
    std::vector<Lists> inputs;
    for (int rank = 0; rank < kRanks; ++rank) {
      outputs.push_back({Blank(length(rank))});
      inputs.push_back({{}});
      for (int of = 0; of < kRanks; ++of) {
        inputs.back()[0].push_back(Numbers(rank, length(of)) + 1000.0F * static_cast<float>(of));
      }
    }
    RunAll([&](ProcessGroup& group, int rank) {
      const auto at = static_cast<size_t>(rank);
      return group.reduce_scatter(outputs[at], inputs[at], {.reduceOp = Op::SUM});
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const at::Tensor sum = torch::arange(length(rank), at::kFloat) * 3 +
                             (300.0F + 3000.0F * static_cast<float>(rank));
      EXPECT_TRUE(outputs[static_cast<size_t>(rank)][0].equal(sum)) << rank << equal;
      EXPECT_TRUE(inputs[static_cast<size_t>(rank)][0][0].equal(Numbers(rank, length(0))))
          << "inputs stay";
    }
  }
}

TEST_F(ProcessGroupTest, AReductionGivesEachRankItsPartOfOneTensorOrSeveral) {
  Tensors single;
  Lists parts;
  for (int rank = 0; rank < kRanks; ++rank) {
    single.push_back(Blank(1));
    parts.push_back({Blank(2), Blank(1)});
  }
  RunAll([&](ProcessGroup& group, int rank) {
    at::Tensor input = Numbers(rank, 3);
    return group._reduce_scatter_base(single[static_cast<size_t>(rank)], input,
                                      {.reduceOp = Op::MIN});
  });
  RunAll([&](ProcessGroup& group, int rank) {
    Tensors inputs = {Numbers(rank, 6), Numbers(rank, 3)};
    return group.reduce_scatter_tensor_coalesced(parts[static_cast<size_t>(rank)], inputs,
                                                 {.reduceOp = Op::MAX});
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const auto number = static_cast<float>(rank);
    EXPECT_TRUE(Holds(single[rank], {number}));
    EXPECT_TRUE(Holds(parts[rank][0], {200 + 2 * number, 201 + 2 * number}));
    EXPECT_TRUE(Holds(parts[rank][1], {200 + number}));
  }
}

// Rank r gives rank d `r + d` rows of two, so that rank 0 gives itself none.
TEST_F(ProcessGroupTest, RowsGoToTheirRanksByTheSplits) {
  Tensors outputs;
  std::vector<int64_t> starts;
  for (int rank = 0; rank < kRanks; ++rank)
    outputs.push_back(torch::full({3 * rank + 3, 2}, -1.0F));
  RunAll([&](ProcessGroup& group, int rank) {
    at::Tensor input = Numbers(rank, 2 * (3 * rank + 3)).view({-1, 2});
    std::vector<int64_t> splits = {rank, rank + 1, rank + 2};
    std::vector<int64_t> same = splits;
    return group.alltoall_base(outputs[static_cast<size_t>(rank)], input, splits, same, {});
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    Tensors rows;
    for (int source = 0; source < kRanks; ++source) {
      // Before the rows for this rank are those for the ranks before it.
      const int64_t begin = rank == 0 ? 0 : rank == 1 ? source : 2 * source + 1;
      const at::Tensor given = Numbers(source, 2 * (3 * source + 3)).view({-1, 2});
      rows.push_back(given.slice(0, begin, begin + source + rank));
    }
    EXPECT_TRUE(outputs[static_cast<size_t>(rank)].equal(torch::cat(rows))) << rank;
  }
}

TEST_F(ProcessGroupTest, WithoutSplitsRanksGetEqualParts) {
  Tensors outputs;
  Lists lists;
  for (int rank = 0; rank < kRanks; ++rank) {
    outputs.push_back(Blank(6));
    lists.push_back({Blank(2), Blank(2), Blank(2)});
  }
  RunAll([&](ProcessGroup& group, int rank) {
    at::Tensor input = Numbers(rank, 6);
    std::vector<int64_t> none;
    return group.alltoall_base(outputs[static_cast<size_t>(rank)], input, none, none, {});
  });
  RunAll([&](ProcessGroup& group, int rank) {
    Tensors inputs = {Numbers(rank, 2), Numbers(rank, 2) + 2, Numbers(rank, 2) + 4};
    return group.alltoall(lists[static_cast<size_t>(rank)], inputs, {});
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const float first = 2 * static_cast<float>(rank);
    EXPECT_TRUE(Holds(outputs[rank],
                      {first, first + 1, first + 100, first + 101, first + 200, first + 201}));
    EXPECT_TRUE(torch::cat(lists[rank]).equal(outputs[rank]));
  }
}

TEST_F(ProcessGroupTest, TheRootGathersAndScatters) {
  Lists gathered = {{Blank(1), Blank(2), Blank(3)}};
  gathered[0] = {Blank(2), Blank(2), Blank(2)};
  Tensors parts;
  RunAll([&](ProcessGroup& group, int rank) {
    Lists outputs = rank == 1 ? gathered : Lists();
    Tensors inputs = {Numbers(rank, 2)};
    return group.gather(outputs, inputs, {.rootRank = 1});
  });
  RunAll([&](ProcessGroup& group, int rank) {
    Lists inputs;
    if (rank == 2) inputs = {{Numbers(5, 1), Numbers(6, 1), Numbers(7, 1)}};
    Tensors outputs = {Blank(1)};
    parts.push_back(outputs[0]);
    return group.scatter(outputs, inputs, {.rootRank = 2});
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(gathered[0][static_cast<size_t>(rank)].equal(Numbers(rank, 2)));
    EXPECT_TRUE(parts[static_cast<size_t>(rank)].equal(Numbers(5 + rank, 1)));
  }
}

TEST_F(ProcessGroupTest, AMessageIsReceivedByItsTagAndFromAnyRankWithItsSource) {
  Tensors first = {Numbers(0, 2)};
  Tensors second = {Numbers(2, 2)};
  const Work send_first = group(0).send(first, 1, 4);
  const Work send_second = group(2).send(second, 1, 8);
  Tensors by_tag = {Blank(2)};
  Tensors by_any = {Blank(2)};
  const Work any = group(1).recvAnysource(by_any, 8);
  const Work tagged = group(1).recv(by_tag, 0, 4);
  for (const Work& work : {send_first, send_second, any, tagged}) EXPECT_TRUE(work->wait());
  EXPECT_TRUE(by_tag[0].equal(Numbers(0, 2)));
  EXPECT_TRUE(by_any[0].equal(Numbers(2, 2)));
  EXPECT_EQ(any->sourceRank(), 2);
  EXPECT_EQ(tagged->sourceRank(), 0);
}

TEST_F(ProcessGroupTest, SparseTensorsOfAnyNumbersOfElementsAreAddedUp) {
  for (const bool is_mean : {false, true}) {
    at::Tensor sum = torch::zeros({4, 2});
    Lists tensors;
    for (int rank = 0; rank < kRanks; ++rank) {
      at::Tensor dense = torch::zeros({4, 2});
      for (int row = 0; row < rank; ++row) dense[row + 1] = Numbers(rank, 2);  // rank 0 has none
      sum += dense;
      tensors.push_back({dense.to_sparse(1)});
    }
    RunAll([&](ProcessGroup& group, int rank) {
      return group.allreduce(tensors[static_cast<size_t>(rank)],
                             {.reduceOp = is_mean ? Op::AVG : Op::SUM});
    });
    for (const Tensors& tensor : tensors) {
      EXPECT_TRUE(tensor[0].is_sparse());
      EXPECT_TRUE(torch::allclose(tensor[0].to_dense(), is_mean ? sum / kRanks : sum));
    }
  }
}

TEST_F(ProcessGroupTest, SparseTensorsOfOtherShapesAreAnErrorOnAllRanks) {
  std::vector<Work> works;
  for (int rank = 0; rank < kRanks; ++rank) {
    Tensors tensors = {torch::ones({rank == 2 ? 5 : 4, 2}).to_sparse(1)};
    works.push_back(group(rank).allreduce(tensors, {}));
  }
  for (const Work& work : works) {
    EXPECT_THAT(ErrorOf([&] { work->wait(); }),
                HasSubstr("the sparse tensors of rank 0 and of rank 2 differ in shape"));
  }
  Tensors sparse = {torch::ones({4, 2}).to_sparse()};
  EXPECT_THAT(ErrorOf([&] { group(0).allreduce(sparse, {.reduceOp = Op::MAX}); }),
              HasSubstr("op: sparse tensors know SUM and AVG only"));
}

TEST_F(ProcessGroupTest, WhatACallDoesNotTakeIsRefusedByName) {
  Tensors one = {Blank(3)};
  Tensors two = {Blank(3), Blank(3)};
  const auto of_group = [](const std::string& operation, const std::string& what) {
    return "INVALID_ARGUMENT: " + operation + " of process group 'dp': " + what;
  };
  EXPECT_EQ(ErrorOf([&] { group(0).broadcast(one, {.rootRank = 3}); }),
            of_group("broadcast", "root: 3 is not in [0, 3)"));
  EXPECT_EQ(ErrorOf([&] { group(0).broadcast(two, {}); }),
            of_group("broadcast", "tensors: has 2 entries instead of 1"));
  EXPECT_EQ(ErrorOf([&] { group(1).send(one, 1, 0); }),
            of_group("send", "peer: 1 is not another rank in [0, 3)"));
  EXPECT_EQ(ErrorOf([&] { group(1).recv(one, 3, 0); }),
            of_group("recv", "peer: 3 is not another rank in [0, 3)"));
  EXPECT_EQ(ErrorOf([&] { group(1).recv(one, 0, -1); }), of_group("recv", "tag: -1 is negative"));
  Lists lists = {two};
  EXPECT_EQ(ErrorOf([&] { group(0).allgather(lists, one, {}); }),
            of_group("all_gather", "tensor_list: has 2 entries instead of 3"));
  lists = {{Blank(3), Blank(3), Blank(3).to(at::kDouble)}};
  EXPECT_EQ(ErrorOf([&] { group(0).allgather(lists, one, {}); }),
            of_group("all_gather", "tensor_list: holds Double beside a tensor of Float"));
  lists = {{Blank(2), Blank(3), Blank(3)}};
  EXPECT_THAT(ErrorOf([&] { group(0).allgather(lists, one, {}); }),
              HasSubstr("count: this rank's entry of the list has 2 elements"));
  lists = {two};
  EXPECT_THAT(ErrorOf([&] { group(0).gather(lists, one, {.rootRank = 1}); }),
              HasSubstr("gather_list on a rank that is not the root: has 1 entries instead of 0"));
  EXPECT_THAT(ErrorOf([&] { group(0).scatter(one, lists, {.rootRank = 1}); }),
              HasSubstr("scatter_list on a rank that is not the root: has 1 entries instead of 0"));
}

TEST_F(ProcessGroupTest, SplitsThatAreNoneOfTheTensorAreRefused) {
  at::Tensor tensor = Blank(4);
  const auto error_of = [&](std::vector<int64_t> output, std::vector<int64_t> input) {
    return ErrorOf([&] {
      at::Tensor result = Blank(4);
      group(0).alltoall_base(result, tensor, output, input, {});
    });
  };
  EXPECT_THAT(error_of({}, {2, 1, 1}),
              HasSubstr("output: its first dimension, 4, is not divisible by 3 ranks"));
  EXPECT_THAT(error_of({2, 1, 1}, {2, 2}), HasSubstr("input_split_sizes: has 2 entries"));
  EXPECT_THAT(error_of({2, 1, 1}, {2, 2, 1}),
              HasSubstr("input_split_sizes: their sum is 5, the first dimension 4"));
  EXPECT_THAT(error_of({2, 1, 1}, {2, 3, -1}), HasSubstr("input_split_sizes: -1 is negative"));
  EXPECT_THAT(error_of({2, 1, 1}, {1, 2, 1}),
              HasSubstr("rank 0 sends itself 1 elements and receives 2"));
}

TEST_F(ProcessGroupTest, ACallsOwnTimeoutComesBeforeTheGroups) {
  Tensors tensors = {Blank(1)};
  const Work own = group(0).allreduce(tensors, {.timeout = milliseconds(20)});
  EXPECT_THAT(ErrorOf([&] { own->wait(); }),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("20 ms")));
}

TEST_F(ProcessGroupTest, TheGroupsTimeoutMayBeChanged) {
  group(0).setTimeout(milliseconds(30));
  const Work work = group(0).barrier({});
  EXPECT_THAT(ErrorOf([&] { work->wait(); }),
              AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("30 ms")));
}

TEST_F(ProcessGroupTest, ACallThatItsCallerWaitsForThrowsItself) {
  ::c10d::BarrierOptions options;
  options.timeout = milliseconds(20);
  options.asyncOp = false;
  EXPECT_THAT(ErrorOf([&] { group(0).barrier(options); }),
              HasSubstr("barrier of process group 'dp'"));
}

TEST_F(ProcessGroupTest, AMonitoredBarrierNamesItsGroupAndTakesItsTimeout) {
  ::c10d::BarrierOptions options;
  options.timeout = milliseconds(20);
  EXPECT_THAT(ErrorOf([&] { group(0).monitoredBarrier(options, /*wait_all_ranks=*/true); }),
              HasSubstr("monitored_barrier of process group 'dp': Ranks 1, 2 failed to pass "
                        "monitoredBarrier in 20 ms"));
  group(0).setTimeout(milliseconds(30));
  EXPECT_THAT(ErrorOf([&] { group(0).monitoredBarrier({}, /*wait_all_ranks=*/false); }),
              HasSubstr("Rank 1 failed to pass monitoredBarrier in 30 ms"));
}

TEST_F(ProcessGroupTest, AnAbortNamesItsRankAndGroup) {
  const Work work = group(0).barrier({});
  group(2).abort();
  EXPECT_THAT(ErrorOf([&] { work->wait(); }),
              HasSubstr("rank 2 called abort() on process group 'dp'"));
}

TEST_F(ProcessGroupTest, AShutdownTellsOnceAndRefusesWhatComesLater) {
  group(0).shutdown();
  group(0).shutdown();
  EXPECT_EQ(closed_, 1);
  EXPECT_NE(ErrorOf([&] { group(0).barrier({})->wait(); }), "none");
}

TEST_F(ProcessGroupTest, CallsAreCounted) {
  EXPECT_EQ(group(0).getSequenceNumberForGroup(), 0U);
  RunAll([](ProcessGroup& group, int) { return group.barrier({}); });
  EXPECT_EQ(group(0).getSequenceNumberForGroup(), 1U);
  EXPECT_EQ(group(0).getBackendName(), "pelton");
  EXPECT_EQ(group(2).getRank(), 2);
  EXPECT_EQ(group(2).getSize(), kRanks);
}

TEST_F(ProcessGroupTest, ItsTensorsLieWhereTheRanksOfAHostReachThem) {
  const at::Tensor tensor = group(0).allocateTensor(5, at::TensorOptions().dtype(at::kDouble));
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({5}));
  EXPECT_EQ(tensor.scalar_type(), at::kDouble);
  EXPECT_NE(Locate(tensor.data_ptr(), tensor.nbytes()).region, kPrivateRegion);
}

TEST_F(ProcessGroupTest, ASignalHandlerStartsNothing) {
  const SignalScope handler;
  EXPECT_THAT(ErrorOf([&] { group(0).barrier({}); }), HasSubstr("called by a signal handler"));
  EXPECT_THAT(ErrorOf([&] { group(0).monitoredBarrier({}, false); }),
              HasSubstr("called by a signal handler"));
}

}  // namespace
}  // namespace pelton::torch_bindings
