// Conformance of neighbour operations: sums by the graph's weights, matching by edge and tag, and
// independence of all that is not a neighbour.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/collectives/neighbor_communicator.h"
#include "comm/graph/graph_sequence.h"
#include "comm/neighbors.h"
#include "comm/reduction/linear_combination.h"
#include "comm/reduction/reduction.h"
#include "comm/transport/conformance/average.h"
#include "comm/transport/conformance/test_world.h"
#include "core/base/draws.h"
#include "core/base/limits.h"
#include "core/base/sanitizer.h"

namespace pelton::conformance {
namespace {

[[maybe_unused]] const bool is_decorated = DecorateCommunicators(&MakeNeighborCommunicator);

using Bytes = std::vector<std::byte>;
using TablePointer = std::shared_ptr<const WeightTable>;

TablePointer TableOf(Neighborhood neighborhood, WeightTable::Form form = {}) {
  auto table = WeightTable::Create(std::move(neighborhood), std::move(form));
  EXPECT_TRUE(table.ok()) << table.status();
  return *std::move(table);
}

Tensor TensorOf(Bytes& bytes, DType dtype) {
  return {bytes.data(), bytes.size() / SizeOf(dtype), dtype};
}
Tensor TensorOf(std::vector<float>& values) {
  return {values.data(), values.size(), DType::kFloat32};
}

// What `rank` begins with: no two ranks or neighbouring elements have the same.
Bytes InputOf(int32_t rank, uint64_t count, DType dtype) {
  std::vector<double> values(count);
  for (uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<double>((i * 31 + static_cast<uint64_t>(rank) * 7) % 101) / 3 - 10;
  }
  Bytes bytes(count * SizeOf(dtype));
  const Term term{reinterpret_cast<const std::byte*>(values.data()), 1, DType::kFloat64};
  LinearCombination({&term, 1}, {bytes.data(), dtype}, count);
  return bytes;
}

// By the rules of neighbors.h, out of everybody's input.
Bytes ExpectedOf(const Neighborhood& mine, int32_t rank, uint64_t count, DType dtype) {
  std::vector<Bytes> inputs = {InputOf(rank, count, dtype)};
  std::vector<double> factors = {mine.own};
  for (const Neighbor& source : mine.sources) {
    inputs.push_back(InputOf(source.rank.value(), count, dtype));
    factors.push_back(source.weight);
  }
  bool is_mean = true;
  std::vector<Term> terms;
  std::vector<const std::byte*> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    is_mean = is_mean && std::abs(factors[i] * static_cast<double>(factors.size()) - 1) < 1e-9;
    terms.push_back({inputs[i].data(), factors[i], dtype});
    tensors.push_back(inputs[i].data());
  }
  Bytes expected(count * SizeOf(dtype));
  std::byte* const target = expected.data();
  if (is_mean) {
    ReduceToMean(tensors, {&target, 1}, count, dtype, tensors.size());
  } else {
    LinearCombination(terms, {target, dtype}, count);
  }
  return expected;
}

void ExpectDone(Communicator& communicator, const absl::StatusOr<Completion>& completion) {
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_EQ(Await(communicator, *completion, FarDeadline()), absl::OkStatus());
}

// Fails with InvalidArgument and a text that has `what` in it; at its launch where the communicator
// has ended by then, because another rank came first.
void ExpectRefused(Communicator& communicator, const absl::StatusOr<Completion>& completion,
                   const std::string& what) {
  const absl::Status status =
      completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
}

Graph GraphNamed(const std::string& name, int32_t size, uint64_t step = 0) {
  auto graphs = MakeGraphs(name, WorldSize(size), {});
  EXPECT_TRUE(graphs.ok()) << graphs.status();
  return (*graphs)->At(step);
}

struct Averaged {
  uint64_t count;
  DType dtype;
  bool in_place;
};

// One average over `graph` on one rank, bit by bit.
void ExpectAverage(Communicator& communicator, const Graph& graph, const Averaged& what) {
  const int32_t rank = communicator.rank().value();
  const Neighborhood mine = graph.Of(communicator.rank());
  const TablePointer table = TableOf(mine);
  Bytes source = InputOf(rank, what.count, what.dtype);
  Bytes apart(source.size(), std::byte{0x5A});
  Bytes& target = what.in_place ? source : apart;
  ExpectDone(communicator, NeighborAllReduce(communicator, TensorOf(source, what.dtype),
                                             TensorOf(target, what.dtype), *table));
  EXPECT_EQ(target, ExpectedOf(mine, rank, what.count, what.dtype))
      << "rank " << rank << " of " << graph.size() << ", " << what.dtype << " x " << what.count;
}

TEST_P(TransportConformanceTest, NeighborsAverageByTheGraphsWeights) {
  for (const int32_t size : {1, 2, 3, 4}) {
    TestWorld world(GetParam(), size);
    world.Run([&](Communicator& communicator) {
      for (const char* const name : {"ring", "exponential", "star", "mesh_grid"}) {
        const Graph graph = GraphNamed(name, size);
        for (const DType dtype :
             {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
          ExpectAverage(communicator, graph, {5, dtype, false});
        }
        ExpectAverage(communicator, graph, {0, DType::kFloat32, false});
        ExpectAverage(communicator, graph, {300'007, DType::kFloat32, true});
        ExpectAverage(communicator, graph, {300'007, DType::kBFloat16, false});
      }
    });
  }
}

// Transports move tensors in other ways as they grow: at each size next to such a change.
TEST_P(TransportConformanceTest, NeighborsAverageTensorsOfAnySize) {
  TestWorld world(GetParam(), 3);
  world.Run([](Communicator& communicator) {
    for (const char* const name : {"ring", "exponential"}) {
      const Graph graph = GraphNamed(name, 3);
      for (const uint64_t count : {1, 6, 7, 1024, 1025, 4096, 4097, 16384, 65536, 65537}) {
        ExpectAverage(communicator, graph, {count, DType::kFloat32, false});
        ExpectAverage(communicator, graph, {count, DType::kFloat32, true});
      }
    }
  });
}

// In place, several at a time, of which each needs what the other rank is about to replace.
TEST_P(TransportConformanceTest, LargeTensorsMayBeAveragedInPlaceSideBySide) {
  TestWorld world(GetParam(), 3);
  const bool in_any_order = world.promises().neighbors_match_by_tag;
  world.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    const Neighborhood mine = GraphNamed("fully_connected", 3).Of(communicator.rank());
    const TablePointer table = TableOf(mine);
    std::vector<std::vector<float>> values(6);
    std::vector<absl::StatusOr<Completion>> completions;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t tag = rank == 1 && in_any_order ? values.size() - 1 - i : i;
      values[tag].assign(700'001, static_cast<float>(3 * static_cast<int>(tag) + rank));
      completions.push_back(NeighborAllReduce(communicator, TensorOf(values[tag]),
                                              TensorOf(values[tag]), *table,
                                              {.tag = static_cast<int32_t>(tag)}));
    }
    for (const auto& completion : completions) ExpectDone(communicator, completion);
    for (size_t tag = 0; tag < values.size(); ++tag) {
      EXPECT_EQ(values[tag], std::vector<float>(700'001, static_cast<float>(3 * tag + 1)));
    }
  });
}

// In each step a rank sends to one other, and receives from none, one or several.
TEST_P(TransportConformanceTest, NeighborsMayChangeFromStepToStep) {
  TestWorld world(GetParam(), 4);
  world.Run([](Communicator& communicator) {
    const OnePeerOf sequence(GraphNamed("star", 4));
    for (uint64_t step = 0; step < 12; ++step) {
      ExpectAverage(communicator, sequence.At(step), {33, DType::kFloat32, true});
    }
  });
}

// Rank r gives (10 r + s) to each s; what arrives is multiplied by that and by the receiver's own.
TEST_P(TransportConformanceTest, WeightsOfDestinationsTravelWithTheTensors) {
  TestWorld world(GetParam(), 3);
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    Neighborhood mine{.own = 2};
    float expected = 2.0F * static_cast<float>(rank + 1);
    for (int32_t other = 0; other < 3; ++other) {
      if (other == rank) continue;
      mine.sources.push_back({Rank(other), 0.5});
      mine.destinations.push_back({Rank(other), 10.0 * rank + other});
      expected += 0.5F * static_cast<float>((10 * other + rank) * (other + 1));
    }
    const TablePointer table = TableOf(mine, {.sends_weights = true});
    std::vector<float> values(3, static_cast<float>(rank + 1));
    for (int round = 0; round < 2; ++round) {
      std::vector<float> target(3);
      ExpectDone(communicator,
                 NeighborAllReduce(communicator, TensorOf(values), TensorOf(target), *table));
      EXPECT_EQ(target, std::vector<float>(3, expected)) << "rank " << rank;
    }
  });
}

// EDGE-1: the ranks launch the tags in opposite orders.
TEST_P(TransportConformanceTest, EdgesMatchByTagInAnyOrder) {
  TestWorld world(GetParam(), 2);
  if (!world.promises().neighbors_match_by_tag) return;
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    const TablePointer table = TableOf(GraphNamed("ring", 2).Of(communicator.rank()));
    std::vector<std::vector<float>> values(10);
    std::vector<absl::StatusOr<Completion>> completions;
    for (int32_t i = 0; i < 10; ++i) {
      const int32_t tag = rank == 0 ? i : 9 - i;
      std::vector<float>& mine = values[static_cast<size_t>(tag)];
      mine.assign(4, static_cast<float>(tag * 4 + rank));
      completions.push_back(
          NeighborAllReduce(communicator, TensorOf(mine), TensorOf(mine), *table, {.tag = tag}));
    }
    for (const auto& completion : completions) ExpectDone(communicator, completion);
    for (size_t tag = 0; tag < values.size(); ++tag) {
      EXPECT_EQ(values[tag], std::vector<float>(4, static_cast<float>(tag * 4) + 0.5F));
    }
  });
}

// Where the order alone says which operations belong together.
TEST_P(TransportConformanceTest, AnotherOrderIsAnErrorWithoutTags) {
  TestWorld world(GetParam(), 2);
  if (world.promises().neighbors_match_by_tag) return;
  world.Run([](Communicator& communicator) {
    const TablePointer table = TableOf(GraphNamed("ring", 2).Of(communicator.rank()));
    std::vector<float> values(4);
    const int32_t tag = communicator.rank() == Rank(0) ? 3 : 4;
    const auto completion =
        NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table, {.tag = tag});
    ExpectRefused(communicator, completion, "tag is ");
  });
}

TEST_P(TransportConformanceTest, EdgesOfOneTagMatchInLaunchOrder) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    const TablePointer table =
        TableOf(GraphNamed("ring", 2).Of(communicator.rank()), {.sends_weights = true});
    std::vector<std::vector<float>> values(100);
    std::vector<absl::StatusOr<Completion>> completions;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i].assign(i % 3, static_cast<float>(i));
      completions.push_back(
          NeighborAllReduce(communicator, TensorOf(values[i]), TensorOf(values[i]), *table));
    }
    for (const auto& completion : completions) ExpectDone(communicator, completion);
    // The weights are given twice, at both ends: 1/2 * i + 1/2 * 1/2 * i.
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], std::vector<float>(i % 3, 0.75F * static_cast<float>(i)));
    }
  });
}

// EDGE-1: ranks 0 and 1 average while rank 2 has launched nothing, behind a barrier that waits for
// it. Where the order counts, the barrier comes later.
TEST_P(TransportConformanceTest, NeighborsWaitForNobodyElse) {
  TestWorld world(GetParam(), 3);
  const bool in_any_order = world.promises().neighbors_match_by_tag;
  world.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    std::vector<float> values(4, static_cast<float>(rank));
    if (rank == 2) {
      ExpectDone(communicator, Recv(communicator, TensorOf(values), Rank(0)));
      EXPECT_EQ(values, std::vector<float>(4, 0.5F));
      return ExpectDone(communicator, Barrier(communicator));
    }
    absl::StatusOr<Completion> barrier;
    if (in_any_order) barrier = Barrier(communicator);
    const Rank other(1 - rank);
    const TablePointer table =
        TableOf({.own = 0.5, .sources = {{other, 0.5}}, .destinations = {{other, 0.5}}});
    ExpectDone(communicator,
               NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table));
    EXPECT_EQ(values, std::vector<float>(4, 0.5F));
    if (rank == 0) ExpectDone(communicator, Send(communicator, TensorOf(values), Rank(2)));
    if (!in_any_order) barrier = Barrier(communicator);
    ExpectDone(communicator, barrier);
  });
}

// Rank 0 only sends, rank 1 only receives, rank 2 does neither.
TEST_P(TransportConformanceTest, ARankMayHaveNoSourcesOrNoDestinations) {
  TestWorld world(GetParam(), 3);
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    Neighborhood mine{.own = 0.25};
    if (rank == 0) mine.destinations = {{Rank(1), 1}};
    if (rank == 1) mine.sources = {{Rank(0), 3}};
    std::vector<float> values(2, 4);
    std::vector<float> target(2);
    ExpectDone(communicator,
               NeighborAllReduce(communicator, TensorOf(values), TensorOf(target), *TableOf(mine)));
    EXPECT_EQ(target, std::vector<float>(2, rank == 1 ? 13.0F : 1.0F));
    EXPECT_EQ(values, std::vector<float>(2, 4));
  });
}

// Rank 0 has another count than rank 1, and the same as rank 2.
TEST_P(TransportConformanceTest, TensorsThatDifferAreAnErrorAtBothEndsOfTheirEdge) {
  TestWorld world(GetParam(), 3);
  const bool survives = world.promises().survives_disagreement;
  world.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    Neighborhood mine{.own = 0.5};
    if (rank == 0) mine.sources = {{Rank(1), 0.25}, {Rank(2), 0.25}};
    if (rank != 0) mine.sources = {{Rank(0), 0.5}};
    mine.destinations = mine.sources;
    const TablePointer table = TableOf(mine);
    std::vector<float> values(rank == 1 ? 5 : 4, static_cast<float>(rank));
    const auto completion =
        NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
    if (rank == 2 && survives) {
      ExpectDone(communicator, completion);
      EXPECT_EQ(values, std::vector<float>(4, 1));
    } else if (rank != 2) {
      ExpectRefused(communicator, completion, "count is ");
      if (survives) {
        EXPECT_EQ(values[0], static_cast<float>(rank));
      }
    } else if (completion.ok()) {
      // However it ends: rank 0 may read the values until then (OWN-1).
      (void)Await(communicator, *completion, FarDeadline());
    }
    if (!survives) return;
    std::vector<int32_t> numbers(4);
    std::vector<float> next(4, 1);
    const Tensor other{numbers.data(), 4, DType::kInt32};
    std::vector<int32_t> gathered(mine.sources.size() * 4);
    const Tensor all{gathered.data(), gathered.size(), DType::kInt32};
    std::vector<float> collected(gathered.size());
    const auto second = rank == 1 ? NeighborAllGather(communicator, other, all, *table, {.tag = 3})
                                  : NeighborAllGather(communicator, TensorOf(next),
                                                      TensorOf(collected), *table, {.tag = 3});
    rank == 2 ? ExpectDone(communicator, second) : ExpectRefused(communicator, second, "dtype is ");
  });
  if (survives) world.ExpectUsable();
}

// Nothing comes back along the edge, by which its sender would see the difference.
TEST_P(TransportConformanceTest, TensorsThatDifferAreAnErrorAtBothEndsOfAOneWayEdge) {
  TestWorld world(GetParam(), 2);
  const TransportPromises promises = world.promises();
  if (!promises.survives_disagreement) return;
  world.Run([&](Communicator& communicator) {
    const bool sends = communicator.rank() == Rank(0);
    Neighborhood mine{.own = 0.5};
    if (sends) mine.destinations = {{Rank(1), 0.5}};
    if (!sends) mine.sources = {{Rank(0), 0.5}};
    const TablePointer table = TableOf(mine);
    for (const size_t count : {4, 1000, 100'000}) {
      std::vector<float> values(sends ? count : count + 1);
      std::vector<float> target(values.size());
      const auto completion =
          NeighborAllReduce(communicator, TensorOf(values), TensorOf(target), *table);
      const bool is_short = count <= 1000;
      if (sends && is_short && !promises.short_sends_learn_of_a_difference) {
        ASSERT_TRUE(completion.ok()) << completion.status();
        (void)Await(communicator, *completion, FarDeadline());
      } else {
        ExpectRefused(communicator, completion, "count is ");
      }
    }
  });
  world.ExpectUsable();
}

TEST_P(TransportConformanceTest, WeightsThatTravelFromOneEndOnlyAreAnError) {
  TestWorld world(GetParam(), 2);
  if (!world.promises().survives_disagreement) return;
  world.Run([](Communicator& communicator) {
    const bool sends_weights = communicator.rank() == Rank(1);
    const TablePointer table =
        TableOf(GraphNamed("ring", 2).Of(communicator.rank()), {.sends_weights = sends_weights});
    std::vector<float> values(4, 1);
    const auto completion =
        NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
    ExpectRefused(communicator, completion, "rank 1 gives weights to its destinations");
  });
}

// Rank r has r + 1 elements, rank 2 none.
TEST_P(TransportConformanceTest, NeighborsGatherTensorsOfDifferentLengths) {
  TestWorld world(GetParam(), 4);
  world.Run([](Communicator& communicator) {
    const auto count_of = [](int32_t rank) {
      return static_cast<size_t>(rank == 2 ? 0 : rank + 1);
    };
    const int32_t rank = communicator.rank().value();
    const Neighborhood mine = GraphNamed("exponential", 4).Of(communicator.rank());
    WeightTable::Form form;
    std::vector<float> expected;
    for (const Neighbor& source : mine.sources) {
      const int32_t other = source.rank.value();
      form.source_counts.push_back(count_of(other));
      expected.insert(expected.end(), count_of(other), static_cast<float>(10 * other));
    }
    std::vector<float> values(count_of(rank), static_cast<float>(10 * rank));
    std::vector<float> target(expected.size(), -1);
    ExpectDone(communicator, NeighborAllGather(communicator, TensorOf(values), TensorOf(target),
                                               *TableOf(mine, form)));
    EXPECT_EQ(target, expected) << "rank " << rank;
  });
}

// More than may be in flight, given while there is room.
TEST_P(TransportConformanceTest, ManyNeighborOperationsGoOnAtOnce) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    const TablePointer table = TableOf(GraphNamed("ring", 2).Of(communicator.rank()));
    constexpr size_t kMany = 3 * limits::kMaxOperationsInFlight;
    std::vector<std::vector<float>> values(kMany);
    std::vector<Completion> completions;
    for (size_t i = 0; i < kMany; ++i) {
      values[i].assign(100,
                       static_cast<float>(i) + static_cast<float>(communicator.rank().value()));
      absl::StatusOr<Completion> launched;
      auto has_launched = [&] {
        launched =
            NeighborAllReduce(communicator, TensorOf(values[i]), TensorOf(values[i]), *table);
        return !absl::IsResourceExhausted(launched.status());
      };
      ASSERT_TRUE(DriveUntil(communicator, has_launched, FarDeadline()));
      ASSERT_TRUE(launched.ok()) << launched.status();
      completions.push_back(*launched);
    }
    for (const Completion completion : completions) ExpectDone(communicator, completion);
    for (size_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(values[i], std::vector<float>(100, static_cast<float>(i) + 0.5F));
    }
  });
}

// Graphs, sizes and where tensors lie change from one to the next, and all are launched before the
// first is waited for: what one leaves behind is no other one's.
TEST_P(TransportConformanceTest, RandomGraphsFollowEachOther) {
  constexpr uint64_t kSequences = kSanitized ? 20 : 60;
  TestWorld world(GetParam(), 4, size_t{8} << 20);
  world.Run([&](Communicator& communicator) {
    const Rank rank = communicator.rank();
    for (uint64_t seed = 1; seed <= kSequences; ++seed) {
      Draws draws(seed);
      std::vector<Average> averages;
      for (uint64_t left = 1 + draws.Below(6); left > 0; --left) {
        const uint64_t count = draws.Below(draws.OneIn(3) ? 40'000 : 40);
        averages.push_back(DrawAverage(draws, communicator.world_size(), count));
      }
      RankMemory& memory = world.memory(rank);
      memory.region.Reset();
      memory.own.Reset();
      std::vector<RankAverage> parts;
      for (const Average& average : averages) parts.emplace_back(average, rank, memory);
      for (RankAverage& part : parts) ASSERT_EQ(part.Launch(communicator), absl::OkStatus());
      for (RankAverage& part : parts) {
        ASSERT_EQ(part.AwaitAll(communicator, FarDeadline()), absl::OkStatus());
        ASSERT_EQ(part.Check(), "") << "rank " << rank << ", seed " << seed;
      }
      ASSERT_EQ(memory.region.CheckGuards() + memory.own.CheckGuards(), "") << "seed " << seed;
    }
  });
}

TEST_P(TransportConformanceTest, RefusesANeighborOperationThatIsNone) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    std::vector<float> values(4);
    const auto refusal = [&](Neighborhood neighborhood, int32_t tag = 0) {
      const TablePointer table = TableOf(std::move(neighborhood));
      return std::string(
          NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table, {.tag = tag})
              .status()
              .message());
    };
    EXPECT_NE(refusal({.sources = {{Rank(rank), 1}}}).find("is this rank"), std::string::npos);
    EXPECT_NE(refusal({.destinations = {{Rank(2), 1}}}).find("rank 2 is not in [0, 2)"),
              std::string::npos);
    EXPECT_NE(refusal({}, -1).find("tag: -1"), std::string::npos);
    Operation unknown;
    unknown.kind = OperationKind::kNeighborAllReduce;
    HostStream stream;
    EXPECT_EQ(communicator.Launch(unknown, stream).status().code(),
              absl::StatusCode::kInvalidArgument);
    std::vector<int32_t> numbers(4);
    const Tensor integers{numbers.data(), 4, DType::kInt32};
    EXPECT_EQ(NeighborAllReduce(communicator, integers, integers, *TableOf({})).status().code(),
              absl::StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace pelton::conformance
