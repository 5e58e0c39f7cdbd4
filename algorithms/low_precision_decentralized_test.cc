#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/test_ranks.h"
#include "algorithms/test_world.h"
#include "core/actor/sim_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

constexpr uint64_t kRounds = 6;

const std::vector<TensorSpec>& Tensors() {
  static const auto* const tensors =
      new std::vector<TensorSpec>{{"weight", DType::kFloat32, 133, {}},
                                  {"bias", DType::kFloat32, 3, {}},
                                  {"head", DType::kFloat32, 70, {}}};
  return *tensors;
}

TestRanksOptions OptionsOf(const std::vector<int32_t>& host_sizes, AlgorithmOptions options) {
  TestRanksOptions world;
  world.algorithm = "low_precision_decentralized";
  world.options = std::move(options);
  world.host_sizes = host_sizes;
  world.tensors = Tensors();
  world.bucket_size_bytes = 600;
  return world;
}

std::vector<int32_t> Flat(int32_t size) {
  return std::vector<int32_t>(static_cast<size_t>(size), 1);
}

// One host on the ring, with the state of the head of low_precision_decentralized.cc for one
// bucket.
struct RingMember {
  Floats weight, left, right, residual;
};

// The algorithm in plain loops, bucket by bucket.
class Reference {
 public:
  Reference(std::vector<int32_t> host_sizes, const Plan& plan, const std::string& codec,
            const Values& initial)
      : host_sizes_(std::move(host_sizes)), plan_(plan), codec_(*MakeCodec(codec, {})) {
    for (const BucketLayout& bucket : plan.buckets()) {
      const Floats flat = FlatOf(bucket, initial, Floats(bucket.flat_count));
      rings_.emplace_back(host_sizes_.size(), RingMember{flat, flat, flat, Floats(flat.size())});
      flats_.emplace_back(host_sizes_.size(), flat);
    }
  }

  std::vector<Values> Round(const std::vector<Values>& inputs) {
    std::vector<Values> results(inputs.size(), Values(Tensors().size()));
    for (const BucketLayout& bucket : plan_.buckets()) {
      const std::vector<Floats> hosts = RoundOfBucket(bucket, inputs);
      size_t rank = 0;
      for (size_t host = 0; host < hosts.size(); ++host) {
        for (int32_t i = 0; i < host_sizes_[host]; ++i) Read(bucket, hosts[host], results[rank++]);
      }
    }
    return results;
  }

 private:
  uint64_t BeginOf(const BucketLayout& bucket, SlotId slot) const {
    return (plan_.slot(slot).offset_bytes - bucket.flat_offset_bytes) / sizeof(float);
  }
  Floats FlatOf(const BucketLayout& bucket, const Values& values, Floats flat) const {
    for (SlotId slot : bucket.slots) {
      const Floats& tensor = values[static_cast<size_t>(slot.value())];
      std::copy(tensor.begin(), tensor.end(),
                flat.begin() + static_cast<std::ptrdiff_t>(BeginOf(bucket, slot)));
    }
    return flat;
  }
  void Read(const BucketLayout& bucket, const Floats& flat, Values& values) const {
    for (SlotId slot : bucket.slots) {
      const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(BeginOf(bucket, slot));
      const auto count = static_cast<std::ptrdiff_t>(plan_.tensor(slot).count);
      values[static_cast<size_t>(slot.value())].assign(begin, begin + count);
    }
  }

  // A host's mean; what was in the padding stays there.
  std::vector<Floats> HostMeans(const BucketLayout& bucket, const std::vector<Values>& inputs) {
    std::vector<Floats> means;
    size_t rank = 0;
    for (size_t host = 0; host < host_sizes_.size(); ++host) {
      const auto id = static_cast<size_t>(bucket.id.value());
      Floats sum = FlatOf(bucket, inputs[rank++], flats_[id][host]);
      for (int32_t i = 1; i < host_sizes_[host]; ++i) {
        const Floats next = FlatOf(bucket, inputs[rank++], flats_[id][host]);
        for (size_t e = 0; e < sum.size(); ++e) sum[e] += next[e];
      }
      if (host_sizes_[host] > 1) {
        for (float& element : sum) element /= static_cast<float>(host_sizes_[host]);
      }
      means.push_back(std::move(sum));
    }
    return means;
  }

  std::vector<Floats> RoundOfBucket(const BucketLayout& bucket, const std::vector<Values>& inputs) {
    const auto id = static_cast<size_t>(bucket.id.value());
    std::vector<Floats> hosts = HostMeans(bucket, inputs);
    std::vector<RingMember>& ring = rings_[id];
    if (ring.size() > 1) {
      std::vector<Floats> messages;
      for (size_t host = 0; host < ring.size(); ++host) {
        messages.push_back(Message(ring, host, hosts[host]));
      }
      for (size_t host = 0; host < ring.size(); ++host) {
        const size_t count = ring.size();
        AddTo(ring[host].weight, messages[host]);
        AddTo(ring[host].left, messages[(host + count - 1) % count]);
        AddTo(ring[host].right, messages[(host + 1) % count]);
        hosts[host] = ring[host].weight;
      }
    }
    flats_[id] = hosts;
    return hosts;
  }

  // D(q) of one host.
  Floats Message(std::vector<RingMember>& ring, size_t host, const Floats& x) {
    const size_t count = ring.size();
    const auto factor = [&](size_t neighbour) {
      return std::min(1.0, static_cast<double>(host_sizes_[neighbour]) / host_sizes_[host]) / 3;
    };
    const double left = factor((host + count - 1) % count);
    const double right = factor((host + 1) % count);
    RingMember& member = ring[host];
    Floats difference(x.size());
    for (size_t e = 0; e < x.size(); ++e) {
      volatile float term = static_cast<float>(left) * member.left[e];
      volatile float sum = x[e] + term;
      term = static_cast<float>(right) * member.right[e];
      sum = sum + term;
      term = static_cast<float>(-(1 + left + right)) * member.weight[e];
      difference[e] = sum + term;
    }
    std::vector<std::byte> encoded(codec_->EncodedBytes(x.size(), DType::kFloat32) + 32);
    auto* const message =
        reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(encoded.data()) + 31) / 32 * 32);
    Floats decoded(x.size());
    if (codec_->NeedsErrorFeedback()) {
      EncodeWithFeedback(*codec_, Bytes(difference), x.size(), DType::kFloat32,
                         Bytes(member.residual), message, Bytes(decoded));
    } else {
      codec_->Encode(Bytes(difference), x.size(), DType::kFloat32, message);
      codec_->Decode(message, x.size(), DType::kFloat32, Bytes(decoded));
    }
    return decoded;
  }

  static std::byte* Bytes(Floats& floats) { return reinterpret_cast<std::byte*>(floats.data()); }
  static void AddTo(Floats& sum, const Floats& term) {
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += term[e];
  }

  const std::vector<int32_t> host_sizes_;
  const Plan& plan_;
  const std::unique_ptr<Codec> codec_;
  std::vector<std::vector<RingMember>> rings_;  // by bucket, then host
  std::vector<std::vector<Floats>> flats_;      // by bucket, then host: what the bucket holds
};

Values Initial() { return TestWorld::Ramp(Tensors(), 7, 3); }

// The next inputs: an optimizer's step, different on each rank, from the results.
std::vector<Values> Stepped(std::vector<Values> values, uint64_t round) {
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const Values step = TestWorld::Ramp(Tensors(), static_cast<int32_t>(rank), round);
    for (size_t slot = 0; slot < step.size(); ++slot) {
      for (size_t i = 0; i < step[slot].size(); ++i) values[rank][slot][i] -= 0.05F * step[slot][i];
    }
  }
  return values;
}

void ExpectEqualsReference(const std::vector<int32_t>& hosts, const std::string& codec,
                           bool hierarchical, uint64_t rounds, uint64_t disturbing_seed) {
  TestRanksOptions options =
      OptionsOf(hosts, {{"codec", codec}, {"hierarchical", hierarchical ? "true" : "false"}});
  options.is_disturbed = disturbing_seed != 0;
  options.seed = disturbing_seed;
  TestWorld world(options);
  const Values initial = Initial();
  world.Prime(initial);
  Reference reference(hosts, world.plan(), codec, initial);
  std::vector<Values> values(static_cast<size_t>(world.size()), initial);
  for (uint64_t round = 0; round < rounds; ++round) {
    const std::vector<Values> inputs = Stepped(values, round);
    values = world.Round(inputs);
    ASSERT_EQ(values, reference.Round(inputs)) << "round " << round << ", codec " << codec;
  }
}

TEST(LowPrecisionDecentralizedTest, EqualsItsFormulaBitByBit) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    SCOPED_TRACE(size);
    ExpectEqualsReference(Flat(size), "min_max_uint8", false, kRounds, 0);
  }
}

TEST(LowPrecisionDecentralizedTest, TakesEveryCodec) {
  for (const CodecRegistry::Entry& codec : CodecRegistry::Get().List()) {
    ExpectEqualsReference(Flat(3), codec.name, false, kRounds, 0);
  }
}

TEST(LowPrecisionDecentralizedTest, WeighsHostsByTheirRanks) {
  for (const std::vector<int32_t>& hosts : std::vector<std::vector<int32_t>>{
           {1}, {3}, {2, 2}, {3, 1}, {1, 2, 3}, {2, 2, 2}, {2, 1, 4, 1}}) {
    ExpectEqualsReference(hosts, "min_max_uint8", true, kRounds, 0);
  }
}

TEST(LowPrecisionDecentralizedTest, ReplicasAreTheNeighboursWeights) {
  for (int32_t size : {2, 3, 4, 8}) {
    TestWorld world(OptionsOf(Flat(size), {}));
    world.Prime(Initial());
    std::vector<Values> values(static_cast<size_t>(size), Initial());
    for (uint64_t round = 0; round < kRounds; ++round) values = world.Round(Stepped(values, round));
    for (int32_t rank = 0; rank < size; ++rank) {
      const int32_t left = (rank + size - 1) % size;
      const int32_t right = (rank + 1) % size;
      const Values own = world.StateOf(rank, "ring exchange/weight");
      ASSERT_EQ(own, values[static_cast<size_t>(rank)]);
      EXPECT_EQ(world.StateOf(rank, "ring exchange/left"),
                world.StateOf(left, "ring exchange/weight"))
          << "rank " << rank << " of " << size;
      EXPECT_EQ(world.StateOf(rank, "ring exchange/right"),
                world.StateOf(right, "ring exchange/weight"));
    }
  }
}

double MeanOf(const std::vector<Values>& values) {
  double sum = 0;
  for (const Values& rank : values) {
    for (const Floats& tensor : rank) sum = std::accumulate(tensor.begin(), tensor.end(), sum);
  }
  return sum / static_cast<double>(values.size());
}

// Largest distance of an element from the mean over the ranks.
float SpreadOf(const std::vector<Values>& values) {
  float spread = 0;
  for (size_t slot = 0; slot < values[0].size(); ++slot) {
    for (size_t i = 0; i < values[0][slot].size(); ++i) {
      float least = values[0][slot][i];
      float most = least;
      for (const Values& rank : values) {
        least = std::min(least, rank[slot][i]);
        most = std::max(most, rank[slot][i]);
      }
      spread = std::max(spread, most - least);
    }
  }
  return spread;
}

// A cast to float16 keeps 11 bits of a difference: what is lost is far below the difference.
TEST(LowPrecisionDecentralizedTest, KeepsTheMeanOverRanksAndComesTogether) {
  for (const std::vector<int32_t>& hosts :
       std::vector<std::vector<int32_t>>{{1, 1, 1, 1}, {2, 1, 4, 1}, {1, 3}}) {
    TestWorld world(OptionsOf(hosts, {{"hierarchical", "true"}, {"codec", "float16"}}));
    world.Prime(Initial());
    std::vector<Values> values =
        Stepped(std::vector<Values>(static_cast<size_t>(world.size()), Initial()), 1);
    const double mean = MeanOf(values);
    const float spread = SpreadOf(values);
    for (int round = 0; round < 40; ++round) values = world.Round(values);
    EXPECT_NEAR(MeanOf(values), mean, 1e-3 * std::abs(mean));
    EXPECT_LT(SpreadOf(values), 0.02F * spread);
  }
}

TEST(LowPrecisionDecentralizedTest, SendsTheBytesOfItsFormula) {
  for (int32_t size : {1, 2, 3, 4, 8}) {
    TestWorld world(OptionsOf(Flat(size), {}));
    world.Prime(Initial());
    world.Round(std::vector<Values>(static_cast<size_t>(size), Initial()));
    const std::unique_ptr<Codec> codec = *MakeCodec("min_max_uint8", {});
    uint64_t encoded = 0;
    for (const BucketLayout& bucket : world.plan().buckets()) {
      encoded += codec->EncodedBytes(bucket.flat_count, bucket.dtype);
    }
    const uint64_t messages = size == 1 ? 0 : size == 2 ? 1 : 2;
    EXPECT_EQ(world.SentBytes(), static_cast<uint64_t>(size) * messages * encoded);
  }
}

TEST(LowPrecisionDecentralizedTest, HoldsUnderDelaysAndReorderings) {
  ForEachSeed(1000, [](uint64_t seed) {
    const bool hierarchical = seed % 2 == 0;
    std::vector<int32_t> hosts = Flat(static_cast<int32_t>(1 + seed % 4));
    if (hierarchical) hosts[seed % hosts.size()] = 1 + static_cast<int32_t>(seed / 4 % 3);
    ExpectEqualsReference(hosts, seed % 5 == 0 ? "one_bit" : "min_max_uint8", hierarchical, 2,
                          seed);
  });
}

TEST(LowPrecisionDecentralizedTest, SaysWhenItsRoundsAre) {
  const auto algorithm =
      *MakeAlgorithm("low_precision_decentralized", {{"communication_interval", "3"}});
  EXPECT_EQ(algorithm->schedule().trigger, TriggerKind::kAfterStep);
  EXPECT_EQ(algorithm->schedule().interval, 3);
  EXPECT_EQ(algorithm->schedule().delay, 0);
}

TEST(LowPrecisionDecentralizedTest, RefusesValuesThatDoNotFit) {
  const auto error = [](const std::string& name, const std::string& value) {
    return MakeAlgorithm("low_precision_decentralized", {{name, value}}).status().ToString();
  };
  EXPECT_THAT(error("codec", "zip"), HasSubstr("option codec is 'zip'"));
  EXPECT_THAT(error("codec.block", "8"), HasSubstr("block"));
  EXPECT_THAT(error("hierarchical", "yes"), HasSubstr("option hierarchical is 'yes'"));
  EXPECT_THAT(error("ring", "1"), HasSubstr("option 'ring' is unknown"));
}

}  // namespace
}  // namespace pelton
