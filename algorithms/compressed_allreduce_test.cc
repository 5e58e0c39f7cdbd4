// ByteGrad and its kin against one process, element by element and bit by bit, and the bytes that
// they send.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/reference.h"
#include "algorithms/stage/compressed_exchange.h"
#include "algorithms/stage/piece_codec.h"
#include "algorithms/test_compressed_reference.h"
#include "algorithms/test_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr int kRounds = 3;

// With two ranks a chunk has two pieces; kManyParts make several parts.
constexpr uint64_t kFewPieces = 33000;
constexpr uint64_t kManyParts = 1100000;

// Together they leave gaps in their bucket.
std::vector<TensorSpec> Tensors(DType dtype, uint64_t count) {
  return {
      {"a", dtype, 77, {}}, {"b", dtype, count, {}}, {"c", dtype, 0, {}}, {"d", dtype, 301, {}}};
}

// What a rank has for a slot in a round: no two alike, of both signs, some of them zero.
std::vector<std::byte> Gradient(int32_t rank, int round, SlotId slot, const TensorSpec& tensor) {
  std::vector<float> floats(tensor.count);
  uint64_t state = 1000003u * static_cast<uint64_t>(rank + 1) +
                   7919u * static_cast<uint64_t>(round) +
                   104729u * static_cast<uint64_t>(slot.value());
  for (float& each : floats) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    each = static_cast<float>(static_cast<int64_t>(state >> 40) - (1 << 23)) * 0x1p-23f;
    if (state % 17 == 0) each = 0;
  }
  return codec::ElementsOfFloats(floats, tensor.dtype);
}

// One run: an algorithm on hosts, with what its reference needs to know.
struct Case {
  std::string name;
  std::string algorithm;
  AlgorithmOptions options;
  std::vector<int32_t> host_sizes;
  CompressedReferenceOptions reference;
  uint64_t count = kFewPieces;
};

class CompressedAllReduceTest : public ::testing::TestWithParam<Case> {
 protected:
  CompressedAllReduceTest() : tensors_(Tensors(GetParam().reference.dtype, GetParam().count)) {
    TestRanksOptions options;
    options.algorithm = GetParam().algorithm;
    options.options = GetParam().options;
    options.host_sizes = GetParam().host_sizes;
    options.tensors = tensors_;
    options.is_disturbed = true;
    ranks_ = std::make_unique<TestRanks>(options);
  }

  static bool Uses(int32_t rank, int round, SlotId slot) {
    return slot.value() != 3 || (rank == 0 && round == 1);
  }

  absl::Status RunRound(int round) {
    return ranks_->RunRound([&](int32_t rank, SlotId slot, std::byte* data) {
      if (!Uses(rank, round, slot)) return false;
      const auto gradient =
          Gradient(rank, round, slot, tensors_[static_cast<size_t>(slot.value())]);
      if (!gradient.empty()) std::memcpy(data, gradient.data(), gradient.size());
      return true;
    });
  }

  const BucketLayout& layout() { return ranks_->rounds(0).plan().buckets()[0]; }
  // Where a slot lies in the flat part. Units: bytes.
  uint64_t OffsetOf(SlotId slot) {
    return ranks_->rounds(0).plan().slot(slot).offset_bytes - layout().flat_offset_bytes;
  }
  // The bucket of each rank as it is before the round.
  std::vector<std::vector<std::byte>> FlatParts(int round) {
    std::vector<std::vector<std::byte>> parts;
    for (int32_t rank = 0; rank < ranks_->world_size(); ++rank) {
      parts.emplace_back(layout().content_count * SizeOf(layout().dtype));
      for (SlotId slot : layout().slots) {
        if (!Uses(rank, round, slot)) continue;
        const auto gradient =
            Gradient(rank, round, slot, tensors_[static_cast<size_t>(slot.value())]);
        std::copy(gradient.begin(), gradient.end(), parts.back().begin() + OffsetOf(slot));
      }
    }
    return parts;
  }

  // Of the slots one at most is not used by any rank; the gap behind it counts to it.
  CompressedReference::Unused UnusedIn(int round) {
    for (auto slot = layout().slots.begin(); slot != layout().slots.end(); ++slot) {
      if (Uses(0, round, *slot)) continue;
      const uint64_t element_bytes = SizeOf(layout().dtype);
      const auto begin = static_cast<uint64_t>(OffsetOf(*slot)) / element_bytes;
      if (slot + 1 == layout().slots.end()) return {begin, layout().content_count};
      return {begin, static_cast<uint64_t>(OffsetOf(*(slot + 1))) / element_bytes};
    }
    return {};
  }

  void CheckAgainstOneProcess(int rounds) {
    ASSERT_EQ(ranks_->rounds(0).plan().buckets().size(), 1u);
    CompressedReference reference(GetParam().reference, layout().content_count);
    for (int round = 0; round < rounds; ++round) {
      ASSERT_TRUE(RunRound(round).ok());
      const std::vector<std::byte> expected = reference.Round(FlatParts(round), UnusedIn(round));
      for (int32_t rank = 0; rank < ranks_->world_size(); ++rank) {
        for (SlotId slot : layout().slots) {
          const std::vector<std::byte> held = ranks_->ResultOf(rank, slot);
          EXPECT_TRUE(std::equal(held.begin(), held.end(), expected.begin() + OffsetOf(slot)))
              << "round " << round << ", rank " << rank << ", slot " << slot.value();
        }
      }
    }
  }

  const std::vector<TensorSpec> tensors_;
  std::unique_ptr<TestRanks> ranks_;
};

class CompressedPartsTest : public CompressedAllReduceTest {};

TEST_P(CompressedAllReduceTest, EqualsOneProcessBitByBit) { CheckAgainstOneProcess(kRounds); }

TEST_P(CompressedPartsTest, EqualOneProcessBitByBit) { CheckAgainstOneProcess(2); }

TEST_P(CompressedAllReduceTest, KnowsExactlyWhatNobodyUsed) {
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(RunRound(round).ok());
    for (int32_t rank = 0; rank < ranks_->world_size(); ++rank) {
      for (SlotId slot : layout().slots) {
        EXPECT_EQ(ranks_->rounds(rank).ResultOf(slot).used_by_any, Uses(0, round, slot));
      }
    }
  }
}

TEST_P(CompressedAllReduceTest, SendsTheBytesOfItsFormula) {
  ASSERT_TRUE(RunRound(0).ok());
  const CompressedReferenceOptions& reference = GetParam().reference;
  const auto codec = *MakeCodec(reference.codec, reference.codec_options);
  const auto parts = static_cast<int32_t>(reference.part_sizes.size());
  const auto others = static_cast<uint64_t>(parts - 1);
  const uint64_t chunk_bytes = PieceCodec::EncodedBytes(
      *codec, layout().dtype, Chunks(layout().content_count, parts).largest_count());
  uint64_t expected = static_cast<uint64_t>(parts) * others * 2 * chunk_bytes;
  // A byte for each of four slots, among all ranks.
  expected += 2 * static_cast<uint64_t>(ranks_->world_size() - 1) * 4;
  // Inside a host each rank but the leader sends its bucket once and receives it once.
  const auto inside = static_cast<uint64_t>(ranks_->world_size() - parts);
  expected += 2 * inside * layout().flat_count * SizeOf(layout().dtype);
  EXPECT_EQ(ranks_->SentBytes(), expected);
}

AlgorithmOptions Options(const CompressedReferenceOptions& reference) {
  AlgorithmOptions options = {{"hierarchical", "false"}};
  options["codec"] = reference.codec;
  for (const auto& [name, value] : reference.codec_options) options["codec." + name] = value;
  return options;
}

Case FlatCase(const std::string& algorithm, int32_t ranks, CompressedReferenceOptions reference) {
  reference.part_sizes.assign(static_cast<size_t>(ranks), 1);
  const std::string name = absl::StrCat(algorithm, "_", reference.codec, "_",
                                        NameOf(reference.dtype), "_", ranks, "_ranks");
  return {name, algorithm, Options(reference), {ranks}, reference};
}

Case HostsCase(const std::vector<int32_t>& host_sizes, CompressedReferenceOptions reference) {
  reference.part_sizes = host_sizes;
  AlgorithmOptions options = Options(reference);
  options["hierarchical"] = "true";
  const std::string name = absl::StrCat("bytegrad_", reference.codec, "_", NameOf(reference.dtype),
                                        "_hosts_", absl::StrJoin(host_sizes, "_"));
  return {name, "bytegrad", options, host_sizes, reference};
}

std::vector<Case> Cases() {
  const CompressedReferenceOptions min_max{
      .codec = "min_max_uint8", .codec_options = {}, .part_sizes = {}};
  const CompressedReferenceOptions one_bit{
      .codec = "one_bit", .codec_options = {}, .part_sizes = {}, .error_feedback = true};
  std::vector<Case> cases;
  for (int32_t ranks : {2, 3, 4, 8}) {
    cases.push_back(FlatCase("bytegrad", ranks, min_max));
    cases.push_back(FlatCase("one_bit_adam", ranks, one_bit));
  }
  for (DType dtype : {DType::kFloat64, DType::kFloat16, DType::kBFloat16}) {
    CompressedReferenceOptions typed = min_max;
    typed.dtype = dtype;
    cases.push_back(FlatCase("qadam", 3, typed));
    cases.push_back(HostsCase({2, 1}, typed));
    typed = one_bit;
    typed.dtype = dtype;
    cases.push_back(FlatCase("one_bit_adam", 3, typed));
  }
  cases.push_back(
      FlatCase("bytegrad", 3, {.codec = "float16", .codec_options = {}, .part_sizes = {}}));
  cases.push_back(FlatCase("bytegrad", 3,
                           {.codec = "top_k",
                            .codec_options = {{"ratio", "0.05"}},
                            .part_sizes = {},
                            .error_feedback = true}));
  cases.push_back(FlatCase("bytegrad", 2,
                           {.codec = "block_int4",
                            .codec_options = {{"block", "64"}},
                            .part_sizes = {},
                            .error_feedback = true}));
  for (const std::vector<int32_t>& hosts :
       {std::vector<int32_t>{1, 1}, {2, 1}, {1, 3}, {3, 2, 3}, {2, 2, 2, 2}}) {
    cases.push_back(HostsCase(hosts, min_max));
    cases.push_back(HostsCase(hosts, one_bit));
  }
  CompressedReferenceOptions sum = min_max;
  sum.average = false;
  cases.push_back(FlatCase("bytegrad", 4, sum));
  cases.back().name += "_sum";
  cases.back().options["average"] = "false";
  return cases;
}

std::vector<Case> CasesOfManyParts() {
  CompressedReferenceOptions options{.codec = "one_bit", .codec_options = {}, .part_sizes = {}};
  std::vector<Case> cases = {HostsCase({2, 1}, options)};
  options.error_feedback = true;
  cases.push_back(FlatCase("bytegrad", 2, options));
  cases[0].options["error_feedback"] = "false";
  for (Case& each : cases) each.count = kManyParts;
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, CompressedAllReduceTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(All, CompressedPartsTest, ::testing::ValuesIn(CasesOfManyParts()),
                         [](const auto& info) { return info.param.name; });

// A mean that fits is found, whatever the sums on the way to it would be.
TEST(CompressedAllReduceLargeTest, KeepsWhatIsFiniteFinite) {
  for (const std::vector<int32_t>& hosts : {std::vector<int32_t>{2, 2}, {3, 1}, {1, 1}, {4}}) {
    for (const char* const algorithm : {"bytegrad", "qadam", "low_precision_decentralized"}) {
      SCOPED_TRACE(absl::StrCat(algorithm, " on ", absl::StrJoin(hosts, "+")));
      TestRanksOptions options;
      options.algorithm = algorithm;
      options.options = {{"hierarchical", "true"}};
      options.host_sizes = hosts;
      options.tensors = {{"large", DType::kFloat16, 64, {}}};
      TestRanks ranks(options);
      const auto large = codec::ElementsOfFloats(std::vector<float>(64, 40000), DType::kFloat16);
      const absl::Status status = ranks.RunRound([&](int32_t, SlotId, std::byte* data) {
        std::copy(large.begin(), large.end(), data);
        return true;
      });
      ASSERT_TRUE(status.ok()) << status;
      const std::vector<std::byte> result = ranks.ResultOf(0, SlotId(0));
      for (const float x : codec::FloatsOfElements(result.data(), 64, DType::kFloat16)) {
        EXPECT_NEAR(x, 40000, 200);
      }
    }
  }
}

// One rank, or one host: what gradient_allreduce gives, bit by bit.
TEST(CompressedAllReduceAloneTest, EncodesNothing) {
  for (const auto& [hierarchical, host] : {std::pair("false", 1), std::pair("true", 3)}) {
    const auto results = [&, host = host](const std::string& algorithm, AlgorithmOptions options) {
      TestRanksOptions ranks_options;
      ranks_options.algorithm = algorithm;
      ranks_options.options = std::move(options);
      ranks_options.host_sizes = {host};
      ranks_options.tensors = Tensors(DType::kFloat32, kFewPieces);
      TestRanks ranks(ranks_options);
      EXPECT_TRUE(ranks
                      .RunRound([&](int32_t rank, SlotId slot, std::byte* data) {
                        const auto gradient =
                            Gradient(rank, 0, slot,
                                     ranks_options.tensors[static_cast<size_t>(slot.value())]);
                        std::copy(gradient.begin(), gradient.end(), data);
                        return true;
                      })
                      .ok());
      return ranks.ResultOf(host - 1, SlotId(1));
    };
    EXPECT_EQ(results("bytegrad", {{"hierarchical", hierarchical}}),
              results("gradient_allreduce", {}));
  }
}

TEST(CompressedOptionsTest, RefusesWhatItDoesNotKnow) {
  const auto error = [](const std::string& algorithm, const AlgorithmOptions& options) {
    const absl::Status status = MakeAlgorithm(algorithm, options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(error("bytegrad", {{"codec", "zip"}}), HasSubstr("option codec is 'zip'"));
  EXPECT_THAT(error("bytegrad", {{"codec.block", "64"}}), HasSubstr("block"));
  EXPECT_THAT(error("bytegrad", {{"error_feedback", "maybe"}}),
              HasSubstr("option error_feedback is 'maybe', not auto, true or false"));
  EXPECT_THAT(error("qadam", {{"average", "false"}}), HasSubstr("option 'average' is unknown"));
}

}  // namespace
}  // namespace pelton
