#include "comm/collectives.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/await.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/actor/sim_executor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Launcher = std::function<absl::StatusOr<Completion>(Communicator&)>;

// Three simulated ranks in one thread, each with tensors of its own.
class CollectivesTest : public testing::Test {
 protected:
  CollectivesTest() : fabric_(WorldSize(3), {{}, 0, &executor_.clock()}) {
    executor_.AddEventSource(&fabric_);
    auto opened = fabric_.OpenAll(CommunicatorId(1), Group::World(WorldSize(3)));
    EXPECT_TRUE(opened.ok()) << opened.status();
    world_ = *std::move(opened);
  }
  ~CollectivesTest() override { executor_.RemoveEventSource(&fabric_); }

  // Launches on all ranks and waits for all of them.
  void RunOnAll(const Launcher& launch) {
    std::vector<Completion> completions;
    for (auto& communicator : world_) {
      const auto completion = launch(*communicator);
      ASSERT_TRUE(completion.ok()) << completion.status();
      completions.push_back(*completion);
    }
    for (size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(Await(*world_[r], completions[r], executor_.Now() + absl::Minutes(1)),
                absl::OkStatus());
    }
  }

  // What rank 1 is told when `launch` is refused; nothing may be in flight then.
  std::string Refusal(const Launcher& launch) {
    const absl::Status status = launch(*world_[1]).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_FALSE(world_[1]->Query({1}).status.ok());  // no such launch
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: "));
    return std::string(status.message());
  }

  SimExecutor executor_{1};
  SimFabric fabric_;
  std::vector<std::unique_ptr<Communicator>> world_;
};

size_t Of(const Communicator& communicator) {
  return static_cast<size_t>(communicator.rank().value());
}

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

TEST_F(CollectivesTest, AllReduceGivesTheSumToAll) {
  std::vector<int32_t> in[] = {{1, 2}, {3, 4}, {5, 6}};
  std::vector<int32_t> out[] = {{0, 0}, {0, 0}, {0, 0}};
  RunOnAll([&](Communicator& c) {
    return AllReduce(c, TensorOf(in[Of(c)]), TensorOf(out[Of(c)]), ReduceOp::kSum);
  });
  for (const auto& result : out) EXPECT_THAT(result, ElementsAre(9, 12));
}

TEST_F(CollectivesTest, ReduceGivesItToTheRootOnly) {
  std::vector<int32_t> in[] = {{1}, {7}, {5}};
  std::vector<int32_t> out[] = {{-1}, {-1}, {-1}};
  RunOnAll([&](Communicator& c) {
    return Reduce(c, TensorOf(in[Of(c)]), TensorOf(out[Of(c)]), ReduceOp::kMax, Rank(2));
  });
  EXPECT_THAT(out[0], ElementsAre(-1));
  EXPECT_THAT(out[2], ElementsAre(7));
}

TEST_F(CollectivesTest, ReduceNeedsATargetOnTheRootOnly) {
  std::vector<int32_t> in[] = {{1}, {7}, {5}};
  std::vector<int32_t> out(1);
  RunOnAll([&](Communicator& c) {
    return Reduce(c, TensorOf(in[Of(c)]), c.rank() == Rank(0) ? TensorOf(out) : Tensor{},
                  ReduceOp::kSum, Rank(0));
  });
  EXPECT_THAT(out, ElementsAre(13));
}

TEST_F(CollectivesTest, ReduceScatterGivesEachRankItsChunk) {
  std::vector<int32_t> in[] = {{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
  std::vector<int32_t> out[] = {{0}, {0}, {0}};
  RunOnAll([&](Communicator& c) {
    return ReduceScatter(c, TensorOf(in[Of(c)]), TensorOf(out[Of(c)]), ReduceOp::kSum);
  });
  EXPECT_THAT(out[0], ElementsAre(111));
  EXPECT_THAT(out[2], ElementsAre(333));
}

TEST_F(CollectivesTest, AllGatherConcatenates) {
  std::vector<int32_t> in[] = {{1}, {2}, {3}};
  std::vector<int32_t> out[] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  RunOnAll(
      [&](Communicator& c) { return AllGather(c, TensorOf(in[Of(c)]), TensorOf(out[Of(c)])); });
  for (const auto& result : out) EXPECT_THAT(result, ElementsAre(1, 2, 3));
}

TEST_F(CollectivesTest, BroadcastCopiesTheRoots) {
  std::vector<int32_t> tensors[] = {{1}, {2}, {3}};
  RunOnAll([&](Communicator& c) { return Broadcast(c, TensorOf(tensors[Of(c)]), Rank(1)); });
  for (const auto& tensor : tensors) EXPECT_THAT(tensor, ElementsAre(2));
}

TEST_F(CollectivesTest, GatherConcatenatesOnTheRootOnly) {
  std::vector<int32_t> in[] = {{1, 2}, {3, 4}, {5, 6}};
  std::vector<int32_t> out(6);
  RunOnAll([&](Communicator& c) {
    return Gather(c, TensorOf(in[Of(c)]), c.rank() == Rank(1) ? TensorOf(out) : Tensor{}, Rank(1));
  });
  EXPECT_THAT(out, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(CollectivesTest, ScatterGivesEachRankItsChunkOfTheRoots) {
  std::vector<int32_t> in = {1, 2, 3};
  std::vector<int32_t> out[] = {{0}, {0}, {0}};
  RunOnAll([&](Communicator& c) {
    return Scatter(c, c.rank() == Rank(2) ? TensorOf(in) : Tensor{}, TensorOf(out[Of(c)]), Rank(2));
  });
  EXPECT_THAT(out[0], ElementsAre(1));
  EXPECT_THAT(out[1], ElementsAre(2));
  EXPECT_THAT(out[2], ElementsAre(3));
}

TEST_F(CollectivesTest, AllToAllTransposesChunks) {
  std::vector<int32_t> in[] = {{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
  std::vector<int32_t> out[] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  RunOnAll([&](Communicator& c) { return AllToAll(c, TensorOf(in[Of(c)]), TensorOf(out[Of(c)])); });
  EXPECT_THAT(out[0], ElementsAre(1, 10, 100));
  EXPECT_THAT(out[2], ElementsAre(3, 30, 300));
}

TEST_F(CollectivesTest, BarrierEnds) { RunOnAll(Barrier); }

TEST_F(CollectivesTest, ErrorsNameTheRootOrPeer) {
  std::vector<int32_t> values(4);
  for (int32_t rank : {-1, 3}) {
    const std::string text = std::to_string(rank) + " is not in [0, 3)";
    const Tensor tensor = TensorOf(values);
    EXPECT_THAT(Refusal([&](Communicator& c) { return Broadcast(c, tensor, Rank(rank)); }),
                AllOf(HasSubstr("root: "), HasSubstr(text)));
    EXPECT_THAT(Refusal([&](Communicator& c) {
                  return Reduce(c, tensor, tensor, ReduceOp::kSum, Rank(rank));
                }),
                AllOf(HasSubstr("root: "), HasSubstr(text)));
    for (const auto& rooted : {Gather, Scatter}) {
      EXPECT_THAT(Refusal([&](Communicator& c) { return rooted(c, tensor, tensor, Rank(rank)); }),
                  AllOf(HasSubstr("root: "), HasSubstr(text)));
    }
    EXPECT_THAT(Refusal([&](Communicator& c) { return Send(c, tensor, Rank(rank)); }),
                AllOf(HasSubstr("destination: "), HasSubstr(text)));
    EXPECT_THAT(Refusal([&](Communicator& c) { return Recv(c, tensor, Rank(rank)); }),
                AllOf(HasSubstr("source: "), HasSubstr(text)));
  }
}

TEST_F(CollectivesTest, ErrorsNameNullData) {
  std::vector<int32_t> values(4);
  EXPECT_THAT(Refusal([&](Communicator& c) {
                return AllReduce(c, {nullptr, 4, DType::kInt32}, TensorOf(values), ReduceOp::kSum);
              }),
              HasSubstr("source: null data with count 4"));
}

TEST_F(CollectivesTest, ErrorsNameCountsThatDoNotFit) {
  std::vector<int32_t> four(4), other_four(4), five(5);
  EXPECT_THAT(Refusal([&](Communicator& c) {
                return AllReduce(c, TensorOf(four), TensorOf(five), ReduceOp::kSum);
              }),
              HasSubstr("source has 4 elements, target 5; the ratio must be 1 : 1"));
  EXPECT_THAT(
      Refusal([&](Communicator& c) { return AllGather(c, TensorOf(four), TensorOf(five)); }),
      HasSubstr("1 : 3"));
  EXPECT_THAT(Refusal([&](Communicator& c) {
                return ReduceScatter(c, TensorOf(four), TensorOf(five), ReduceOp::kSum);
              }),
              HasSubstr("3 : 1"));
}

TEST_F(CollectivesTest, ErrorsNameCountsThatDoNotDivide) {
  std::vector<int32_t> four(4), other_four(4), five(5);
  const auto refusal_of = [&](Tensor source, Tensor target, auto operation) {
    return Refusal([&](Communicator& c) { return operation(c, source, target); });
  };
  const auto gather = [](Communicator& c, Tensor source, Tensor target) {
    return Gather(c, source, target, Rank(1));
  };
  const auto scatter = [](Communicator& c, Tensor source, Tensor target) {
    return Scatter(c, source, target, Rank(1));
  };
  EXPECT_THAT(refusal_of(TensorOf(four), TensorOf(five), gather), HasSubstr("1 : 3"));
  EXPECT_THAT(refusal_of(TensorOf(four), TensorOf(five), scatter), HasSubstr("3 : 1"));
  EXPECT_THAT(refusal_of(TensorOf(four), TensorOf(other_four), AllToAll),
              HasSubstr("4 elements are not 3 equal chunks"));
}

TEST_F(CollectivesTest, ErrorsNameDTypesAndOps) {
  std::vector<int32_t> values(4);
  float other[4];
  EXPECT_THAT(Refusal([&](Communicator& c) {
                return AllReduce(c, TensorOf(values), {other, 4, DType::kFloat32}, ReduceOp::kSum);
              }),
              HasSubstr("source is int32, target is float32"));
  for (const auto& [op, dtype, text] : {std::tuple{ReduceOp::kBitOr, DType::kFloat32, "BOR"},
                                        std::tuple{ReduceOp::kAvg, DType::kBool, "AVG"},
                                        std::tuple{ReduceOp::kMin, DType::kComplex64, "MIN"}}) {
    const Tensor tensor{other, 1, dtype};
    EXPECT_THAT(Refusal([&, op = op](Communicator& c) { return AllReduce(c, tensor, tensor, op); }),
                AllOf(HasSubstr(text), HasSubstr(std::string(NameOf(dtype)))));
  }
}

TEST_F(CollectivesTest, RanksWhoseBucketsOrShapesDifferDoNotMeet) {
  std::vector<int32_t> values[] = {{1}, {2}, {3}};
  const auto outcome_with = [&](BucketId bucket, int32_t shape_mark) {
    std::vector<Completion> completions;
    for (auto& communicator : world_) {
      const bool differs = communicator->rank() == Rank(1);
      const Tensor tensor = TensorOf(values[Of(*communicator)]);
      const CollectiveCall call{.kind = OperationKind::kAllReduce,
                                .source = tensor,
                                .target = tensor,
                                .bucket = differs ? bucket : BucketId(3),
                                .shape_mark = differs ? shape_mark : 7};
      completions.push_back(LaunchCollective(*communicator, call).value());
    }
    return Await(*world_[0], completions[0], executor_.Now() + absl::Minutes(1)).ToString();
  };
  EXPECT_EQ(outcome_with(BucketId(3), 7), "OK");
  EXPECT_THAT(outcome_with(BucketId(4), 7),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("bucket"), HasSubstr("3 on rank 0"),
                    HasSubstr("4 on rank 1")));
  EXPECT_THAT(outcome_with(BucketId(3), 8),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("shapes of the tensors differ")));
}

TEST_F(CollectivesTest, SendMeetsRecv) {
  std::vector<int32_t> out = {7, 8}, in = {0, 0};
  const auto send = Send(*world_[0], TensorOf(out), Rank(2), 5);
  const auto recv = Recv(*world_[2], TensorOf(in), Rank(0), 5);
  ASSERT_TRUE(send.ok() && recv.ok());
  EXPECT_EQ(Await(*world_[2], *recv, executor_.Now() + absl::Minutes(1)), absl::OkStatus());
  EXPECT_EQ(in, out);
}

// Tensors of 3 ranks in one array: rank 1 is the one that asks.
TEST_F(CollectivesTest, RefusesTensorsThatOverlapInAnotherWayThanItsOwnInPlaceForm) {
  std::vector<int32_t> values(12);
  const auto at = [&](size_t begin, uint64_t count) {
    return Tensor{values.data() + begin, count, DType::kInt32};
  };
  const auto expect_refused = [&](const Launcher& launch) {
    EXPECT_THAT(Refusal(launch), AllOf(HasSubstr("source, target: "), HasSubstr("share memory")));
  };
  expect_refused([&](Communicator& c) { return AllReduce(c, at(0, 4), at(3, 4), ReduceOp::kSum); });
  expect_refused(
      [&](Communicator& c) { return Reduce(c, at(2, 4), at(0, 4), ReduceOp::kSum, Rank(1)); });
  // Chunk 0 and a straddling one: chunk 1 is rank 1's.
  expect_refused(
      [&](Communicator& c) { return ReduceScatter(c, at(0, 9), at(0, 3), ReduceOp::kSum); });
  expect_refused(
      [&](Communicator& c) { return ReduceScatter(c, at(0, 9), at(8, 3), ReduceOp::kSum); });
  expect_refused([&](Communicator& c) { return AllGather(c, at(6, 3), at(0, 9)); });
  expect_refused([&](Communicator& c) { return Gather(c, at(3, 3), at(0, 9), Rank(1)); });
  expect_refused([&](Communicator& c) { return Scatter(c, at(0, 9), at(3, 3), Rank(1)); });
  expect_refused([&](Communicator& c) { return AllToAll(c, at(0, 6), at(0, 6)); });
}

TEST_F(CollectivesTest, TakesTensorsThatTouchAndThoseInPlace) {
  std::vector<int32_t> values[3];
  for (auto& of_rank : values) of_rank.assign(12, 1);
  const auto at = [&](const Communicator& c, size_t begin, uint64_t count) {
    return Tensor{values[Of(c)].data() + begin, count, DType::kInt32};
  };
  RunOnAll([&](Communicator& c) { return AllReduce(c, at(c, 0, 4), at(c, 4, 4), ReduceOp::kSum); });
  RunOnAll([&](Communicator& c) {
    return ReduceScatter(c, at(c, 0, 9), at(c, 3 * Of(c), 3), ReduceOp::kSum);
  });
  RunOnAll([&](Communicator& c) { return AllGather(c, at(c, 3 * Of(c), 3), at(c, 0, 9)); });
  // 1 + 1 + 1 in what was 1, and 3 + 3 + 3 in what was the first sum's.
  for (const auto& of_rank : values) {
    EXPECT_THAT(of_rank, ElementsAre(3, 3, 3, 3, 9, 9, 9, 9, 3, 1, 1, 1));
  }
}

}  // namespace
}  // namespace pelton
