#include "algorithms/test_graph_world.h"

#include "absl/strings/str_cat.h"
#include "algorithms/test_ranks.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/window/test_windows.h"
#include "core/actor/sim_test.h"
#include "core/base/check.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors =
      new std::vector<TensorSpec>{{"a", DType::kFloat32, 37, {}}, {"b", DType::kFloat32, 70, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(const GraphCase& one) {
  TestRanksOptions options;
  options.algorithm = one.algorithm;
  options.options = one.options;
  options.host_sizes.assign(static_cast<size_t>(one.size), 1);
  options.tensors = Tensors();
  options.bucket_size_bytes = 200;  // each is a bucket of its own
  options.is_disturbed = one.disturbing_seed != 0;
  options.seed = one.disturbing_seed;
  return options;
}

Values Initial() { return TestWorld::Ramp(Tensors(), 5, 2); }

// A step of every rank's own optimizer.
std::vector<Values> Trained(std::vector<Values> values, uint64_t round) {
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const Values change = TestWorld::Ramp(Tensors(), static_cast<int32_t>(rank), round);
    for (size_t slot = 0; slot < change.size(); ++slot) {
      for (size_t i = 0; i < change[slot].size(); ++i) {
        values[rank][slot][i] -= 0.1F * change[slot][i];
      }
    }
  }
  return values;
}

void RoundOf(GraphReference& reference, std::vector<Values>& ranks, size_t slot, uint64_t round) {
  Columns columns;
  for (const Values& rank : ranks) columns.push_back(rank[slot]);
  reference.Round(columns, round);
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank][slot] = columns[rank];
}

}  // namespace

float Combined(std::initializer_list<std::pair<double, float>> terms) {
  volatile float sum = static_cast<float>(terms.begin()->first) * terms.begin()->second;
  for (auto term = terms.begin() + 1; term != terms.end(); ++term) {
    volatile float product = static_cast<float>(term->first) * term->second;
    sum = sum + product;
  }
  return sum;
}

Columns MeansOf(const Columns& columns, const Graph& graph) {
  Columns means;
  for (size_t rank = 0; rank < columns.size(); ++rank) {
    const Neighborhood near = graph.Of(Rank(static_cast<int32_t>(rank)));
    std::vector<float>& mean = means.emplace_back(columns[rank].size());
    for (size_t i = 0; i < mean.size(); ++i) {
      volatile float sum = static_cast<float>(near.own) * columns[rank][i];
      for (const Neighbor& source : near.sources) {
        volatile float product = static_cast<float>(source.weight) *
                                 columns[static_cast<size_t>(source.rank.value())][i];
        sum = sum + product;
      }
      mean[i] = sum;
    }
  }
  return means;
}

Columns GlobalMeansOf(const Columns& columns) {
  std::vector<float> mean(columns[0].size());
  for (size_t i = 0; i < mean.size(); ++i) {
    float sum = columns[0][i];
    for (size_t rank = 1; rank < columns.size(); ++rank) sum += columns[rank][i];
    mean[i] = sum / static_cast<float>(columns.size());
  }
  return Columns(columns.size(), mean);
}

Graph EqualSharesOf(const Graph& graph) {
  std::vector<double> own(graph.own().size());
  for (size_t rank = 0; rank < own.size(); ++rank) {
    const Neighborhood near = graph.Of(Rank(static_cast<int32_t>(rank)));
    own[rank] = 1.0 / static_cast<double>(1 + near.destinations.size());
  }
  std::vector<Graph::Edge> edges(graph.edges().begin(), graph.edges().end());
  for (Graph::Edge& edge : edges) edge.weight = own[static_cast<size_t>(edge.source)];
  return *Graph::Create(std::move(own), std::move(edges));
}

std::unique_ptr<GraphSequence> GraphCase::graphs() const {
  return *MakeGraphs(options.at("graph"), WorldSize(size), {});
}

void ExpectEqualsReference(const GraphCase& one, const ReferenceMaker& make) {
  SCOPED_TRACE(absl::StrCat(DescribeAlgorithm(one.algorithm, one.options), " on ", one.size));
  TestWorld world(OptionsOf(one));
  world.Prime(Initial());
  std::vector<std::unique_ptr<GraphReference>> references;
  for (const std::vector<float>& tensor : Initial()) references.push_back(make(one, tensor));
  std::vector<Values> values(static_cast<size_t>(one.size), Initial());
  for (uint64_t round = 1; round <= one.rounds; ++round) {
    std::vector<Values> expected = Trained(values, round);
    values = world.Round(expected);
    for (size_t slot = 0; slot < Tensors().size(); ++slot) {
      RoundOf(*references[slot], expected, slot, round);
    }
    ASSERT_EQ(values, expected) << "round " << round;
  }
}

void ExpectEqualsReferenceOnGraphs(const GraphCase& one, const std::vector<std::string>& graphs,
                                   const ReferenceMaker& make) {
  for (const std::string& graph : graphs) {
    for (const int32_t size : {1, 2, 3, 4, 8}) {
      GraphCase with = one;
      with.size = size;
      with.options["graph"] = graph;
      ExpectEqualsReference(with, make);
      with.options["global_interval"] = "3";
      ExpectEqualsReference(with, make);
    }
  }
}

void ExpectEqualsReferenceUnderDelays(const GraphCase& one, const std::vector<std::string>& graphs,
                                      const ReferenceMaker& make) {
  ForEachSeed(1000, [&](uint64_t seed) {
    GraphCase with = one;
    with.size = static_cast<int32_t>(1 + seed % 4);
    with.options["graph"] = graphs[seed % graphs.size()];
    if (seed % 5 == 0) with.options["global_interval"] = "2";
    with.disturbing_seed = seed;
    with.rounds = 3;
    ExpectEqualsReference(with, make);
  });
}

std::vector<Values> ResultsOf(const GraphCase& one) {
  TestWorld world(OptionsOf(one));
  world.Prime(Initial());
  std::vector<Values> values(static_cast<size_t>(one.size), Initial());
  for (uint64_t round = 1; round <= one.rounds; ++round) {
    values = world.Round(Trained(values, round));
  }
  return values;
}

SentInRound SentInFirstRound(const GraphCase& one) {
  TestWorld world(OptionsOf(one));
  world.Prime(Initial());
  const uint64_t before = world.SentBytes();
  world.Round(std::vector<Values>(static_cast<size_t>(one.size), Initial()));
  return {world.SentBytes() - before, one.graphs()->At(0).edges().size(), world.BucketBytes(),
          world.plan().buckets().size()};
}

absl::Status StatusOn(const GraphCase& one) {
  SimFabric fabric{WorldSize(one.size)};
  auto communicators = *fabric.OpenAll(CommunicatorId(1), Group::World(WorldSize(one.size)));
  absl::StatusOr<std::unique_ptr<Algorithm>> algorithm = MakeAlgorithm(one.algorithm, one.options);
  if (!algorithm.ok()) return algorithm.status();
  PlanOptions options;
  options.world_size = WorldSize(one.size);
  options.constraints = (*algorithm)->Constraints();
  const Plan plan = *Plan::Build(Tensors(), options);
  Tiers tiers = Tiers::Of(*communicators[0]);
  TestWindows windows(1);  // of one rank: none can be made, where the graph is not refused before
  if ((*algorithm)->UsesWindows()) tiers.windows = &windows.source(0);
  return MakePipeline(**algorithm, plan.buckets()[0], tiers).status();
}

}  // namespace pelton
