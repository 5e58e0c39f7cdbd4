// CHOCO-SGD against one process that does the same in plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "comm/graph/graph_sequence.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors = new std::vector<TensorSpec>{
      {"weight", DType::kFloat32, 133, {}}, {"head", DType::kFloat32, 700, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(int32_t size, AlgorithmOptions options) {
  TestRanksOptions world;
  world.algorithm = "choco_sgd";
  world.options = std::move(options);
  world.host_sizes.assign(static_cast<size_t>(size), 1);
  world.tensors = Tensors();
  world.bucket_size_bytes = 600;  // each is a bucket of its own
  return world;
}

Values Initial() { return TestWorld::Ramp(Tensors(), 7, 3); }

// A step of every rank's own optimizer.
std::vector<Values> Trained(std::vector<Values> values, uint64_t step) {
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const Values change = TestWorld::Ramp(Tensors(), static_cast<int32_t>(rank), step);
    for (size_t slot = 0; slot < change.size(); ++slot) {
      for (size_t i = 0; i < change[slot].size(); ++i) {
        values[rank][slot][i] -= 0.05F * change[slot][i];
      }
    }
  }
  return values;
}

// The state of the head of choco_sgd.cc, of one tensor on one rank, padding included.
struct Member {
  Floats weight, told, sum;
};

// One tensor on all ranks.
class Reference {
 public:
  Reference(const Floats& initial, uint64_t bucket_count, const Graph& graph,
            const std::string& codec, float rate)
      : graph_(graph), codec_(*MakeCodec(codec, {})), rate_(rate), count_(initial.size()) {
    Floats flat = initial;
    flat.resize(bucket_count);
    members_.assign(static_cast<size_t>(graph.size().value()), Member{flat, flat, flat});
  }

  // The ranks' weights before, and after the round.
  void Round(std::vector<Values>& ranks, size_t slot) {
    if (members_.size() == 1) return;
    std::vector<Floats> messages;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      std::copy(ranks[rank][slot].begin(), ranks[rank][slot].end(), members_[rank].weight.begin());
      messages.push_back(MessageOf(members_[rank]));
    }
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      Update(members_[rank], graph_.Of(Rank(static_cast<int32_t>(rank))), messages, rank);
      const Floats& weight = members_[rank].weight;
      ranks[rank][slot].assign(weight.begin(), weight.begin() + static_cast<ptrdiff_t>(count_));
    }
  }

  const Member& member(size_t rank) const { return members_[rank]; }

 private:
  // What the rank's message decodes to.
  Floats MessageOf(const Member& member) const {
    Floats difference(member.weight.size());
    for (size_t i = 0; i < difference.size(); ++i) {
      difference[i] = member.weight[i] - member.told[i];
    }
    std::vector<std::byte> memory(codec_->EncodedBytes(difference.size(), DType::kFloat32) + 32);
    auto* const message =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 31) / 32 * 32);
    codec_->Encode(reinterpret_cast<const std::byte*>(difference.data()), difference.size(),
                   DType::kFloat32, message);
    Floats decoded(difference.size());
    codec_->Decode(message, decoded.size(), DType::kFloat32,
                   reinterpret_cast<std::byte*>(decoded.data()));
    return decoded;
  }

  static void Add(Floats& target, double weight, const Floats& decoded) {
    for (size_t i = 0; i < target.size(); ++i) {
      volatile float term = static_cast<float>(weight) * decoded[i];
      target[i] = target[i] + term;
    }
  }

  void Update(Member& member, const Neighborhood& near, const std::vector<Floats>& messages,
              size_t rank) const {
    Add(member.told, 1, messages[rank]);
    Add(member.sum, near.own, messages[rank]);
    for (const Neighbor& source : near.sources) {
      Add(member.sum, source.weight, messages[static_cast<size_t>(source.rank.value())]);
    }
    for (size_t i = 0; i < member.weight.size(); ++i) {
      volatile float apart = member.sum[i] - member.told[i];
      volatile float moved = rate_ * apart;
      member.weight[i] = member.weight[i] + moved;
    }
  }

  const Graph graph_;
  const std::unique_ptr<Codec> codec_;
  const float rate_;
  const size_t count_;
  std::vector<Member> members_;
};

struct Case {
  int32_t size = 1;
  std::string graph = "ring";
  std::string codec = "min_max_uint8";
  uint64_t disturbing_seed = 0;
};

void ExpectEqualsReference(const Case& one) {
  SCOPED_TRACE(absl::StrCat(one.codec, " on a ", one.graph, " of ", one.size));
  TestRanksOptions options = OptionsOf(
      one.size, {{"graph", one.graph}, {"codec", one.codec}, {"consensus_rate", "0.375"}});
  options.is_disturbed = one.disturbing_seed != 0;
  options.seed = one.disturbing_seed;
  TestWorld world(options);
  world.Prime(Initial());
  const Graph graph = (*MakeGraphs(one.graph, WorldSize(one.size), {}))->At(0);
  std::vector<std::unique_ptr<Reference>> references;
  for (size_t slot = 0; slot < Tensors().size(); ++slot) {
    const BucketId bucket = world.plan().slot(SlotId(static_cast<int32_t>(slot))).bucket;
    references.push_back(std::make_unique<Reference>(
        Initial()[slot], world.plan().bucket(bucket).flat_count, graph, one.codec, 0.375F));
  }
  std::vector<Values> values(static_cast<size_t>(one.size), Initial());
  for (uint64_t round = 0; round < 5; ++round) {
    std::vector<Values> expected = Trained(values, round);
    values = world.Round(expected);
    for (size_t slot = 0; slot < Tensors().size(); ++slot) references[slot]->Round(expected, slot);
    ASSERT_EQ(values, expected) << "round " << round;
  }
}

TEST(ChocoSgdTest, EqualsOneProcessBitByBit) {
  for (const char* codec : {"min_max_uint8", "bfloat16", "block_int4", "one_bit", "top_k"}) {
    for (int32_t size : {1, 2, 3, 4, 8}) ExpectEqualsReference({size, "ring", codec});
  }
}

TEST(ChocoSgdTest, EqualsItOnEverySymmetricGraph) {
  for (const char* graph : {"star", "mesh_grid", "symmetric_exponential", "fully_connected"}) {
    for (int32_t size : {1, 2, 3, 4, 6, 8}) ExpectEqualsReference({size, graph, "one_bit"});
  }
}

TEST(ChocoSgdTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000, [](uint64_t seed) {
    ExpectEqualsReference({static_cast<int32_t>(1 + seed % 4), seed % 2 == 0 ? "ring" : "star",
                           seed % 3 == 0 ? "one_bit" : "min_max_uint8", seed});
  });
}

// How far the ranks are from their mean, at most.
float SpreadOf(const std::vector<Values>& ranks) {
  float spread = 0;
  for (size_t slot = 0; slot < ranks[0].size(); ++slot) {
    for (size_t i = 0; i < ranks[0][slot].size(); ++i) {
      float least = ranks[0][slot][i];
      float most = least;
      for (const Values& rank : ranks) {
        least = std::min(least, rank[slot][i]);
        most = std::max(most, rank[slot][i]);
      }
      spread = std::max(spread, most - least);
    }
  }
  return spread;
}

double SumOf(const std::vector<Values>& ranks) {
  double sum = 0;
  for (const Values& rank : ranks) {
    for (const Floats& tensor : rank) {
      for (float element : tensor) sum += element;
    }
  }
  return sum;
}

// What a codec drops is told later: without further training all ranks come to the mean.
TEST(ChocoSgdTest, RanksComeToTheirMeanWithEveryCodecAtItsOwnRate) {
  for (const CodecRegistry::Entry& codec : CodecRegistry::Get().List()) {
    SCOPED_TRACE(codec.name);
    TestWorld world(OptionsOf(4, {{"codec", codec.name}}));
    world.Prime(Initial());
    std::vector<Values> values = Trained(std::vector<Values>(4, Initial()), 3);
    const float spread = SpreadOf(values);
    const double sum = SumOf(values);
    for (int round = 0; round < 400; ++round) values = world.Round(values);
    EXPECT_LT(SpreadOf(values), spread * 0.25F);
    EXPECT_NEAR(SumOf(values), sum, std::abs(sum) * 1e-3);
  }
}

// What they hold of each other afterwards is that mean as well, and so the round after it, without
// training, moves nobody.
TEST(ChocoSgdTest, RanksHaveTheExactMeanInGlobalRounds) {
  TestWorld world(OptionsOf(4, {{"codec", "one_bit"}, {"global_interval", "3"}}));
  world.Prime(Initial());
  std::vector<Values> values(4, Initial());
  for (uint64_t round = 0; round < 2; ++round) values = world.Round(Trained(values, round));
  const std::vector<Values> trained = Trained(values, 2);
  const uint64_t before = world.SentBytes();
  values = world.Round(trained);
  EXPECT_EQ(world.SentBytes() - before, 6 * world.BucketBytes());
  for (size_t slot = 0; slot < Tensors().size(); ++slot) {
    for (size_t i = 0; i < Tensors()[slot].count; ++i) {
      float sum = trained[0][slot][i];
      for (size_t rank = 1; rank < 4; ++rank) sum += trained[rank][slot][i];
      for (const Values& rank : values) ASSERT_EQ(rank[slot][i], sum / 4);
    }
  }
  EXPECT_EQ(world.Round(values), values);
}

TEST(ChocoSgdTest, ARanksSumIsWhatItsNeighboursHaveTold) {
  TestWorld world(OptionsOf(4, {{"codec", "one_bit"}}));
  world.Prime(Initial());
  std::vector<Values> values(4, Initial());
  for (uint64_t round = 0; round < 20; ++round) values = world.Round(Trained(values, round));
  const Graph graph = (*MakeGraphs("ring", WorldSize(4), {}))->At(0);
  std::vector<Values> told;
  for (int32_t rank = 0; rank < 4; ++rank) {
    told.push_back(world.StateOf(rank, "compressed gossip/told"));
  }
  for (int32_t rank = 0; rank < 4; ++rank) {
    const Neighborhood near = graph.Of(Rank(rank));
    const Values sum = world.StateOf(rank, "compressed gossip/sum");
    for (size_t i = 0; i < Tensors()[1].count; ++i) {
      double expected = near.own * told[static_cast<size_t>(rank)][1][i];
      for (const Neighbor& source : near.sources) {
        expected += source.weight * told[static_cast<size_t>(source.rank.value())][1][i];
      }
      ASSERT_NEAR(sum[1][i], expected, 1e-3) << "rank " << rank << ", element " << i;
    }
  }
}

TEST(ChocoSgdTest, SendsAnEncodedBucketToEachNeighbour) {
  const auto codec = *MakeCodec("one_bit", {});
  for (const auto& [graph, edges] : {std::pair("ring", 8), std::pair("star", 6)}) {
    TestWorld world(OptionsOf(4, {{"codec", "one_bit"}, {"graph", graph}}));
    world.Prime(Initial());
    uint64_t encoded = 0;
    for (const BucketLayout& bucket : world.plan().buckets()) {
      encoded += codec->EncodedBytes(bucket.flat_count, bucket.dtype);
    }
    const uint64_t before = world.SentBytes();
    world.Round(std::vector<Values>(4, Initial()));
    EXPECT_EQ(world.SentBytes() - before, static_cast<uint64_t>(edges) * encoded) << graph;
  }
}

TEST(ChocoSgdTest, RefusesValuesThatDoNotFit) {
  const auto error = [](const AlgorithmOptions& options) {
    return MakeAlgorithm("choco_sgd", options).status().ToString();
  };
  EXPECT_THAT(error({{"codec", "none"}}), HasSubstr("option codec is 'none', not one of"));
  EXPECT_THAT(error({{"error_feedback", "true"}}), HasSubstr("part of the next in any case"));
  EXPECT_THAT(error({{"consensus_rate", "2"}}), HasSubstr("option consensus_rate is '2'"));
  EXPECT_THAT(error({{"graph", "circle"}}), HasSubstr("option graph is 'circle', not one of"));
}

}  // namespace
}  // namespace pelton
