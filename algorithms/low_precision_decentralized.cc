// Decentralized averaging in low precision on a ring: after each optimizer step every rank tells
// its two neighbours, in a codec's few bits, by how much its weights have changed.
//
// State per bucket: w, the weights that this rank has told its neighbours of, and l and r, what the
// left and the right one have told of theirs; all begin as the initial model, which is the same on
// all ranks. With x the weights after the step, and D(q) what the message q decodes to:
//   q = encode(x + l/3 + r/3 - (5/3) w), the bucket as one chunk
//   x = w = w + D(q);  l += D(q of the left);  r += D(q of the right)
// So x becomes x + (l + r - 2 w)/3 up to the codec's error, l and r stay the neighbours' w bit by
// bit, and the mean over all ranks is kept up to that error. On 2 ranks l and r are one: the other
// rank counts twice, with 2/3, and is told once. One rank has nobody to tell: its weights stay.
//
// Hierarchical: x is the mean over a host's ranks, the ring is one of hosts, and all ranks of a
// host get its x. Where hosts differ in their number of ranks s, the third of a neighbour becomes
// min(1, s of the neighbour / s of mine)/3 (Metropolis weights), and 5/3 becomes 1 + both: what
// flows between two hosts is then the same in both directions when weighted with s, which keeps the
// mean over the ranks. Of equal hosts that is the formula above.
//
// Error feedback, where the codec needs it: what D(q) lacks of the difference is added to the next.
//
// Another number of ranks goes on with w = l = r = the weights, which are all ranks' alike then,
// and with the mean of what D(q) lacked (hosts of any sizes count alike in it, so that where they
// differ it is not quite what the mean over the ranks lacks); alone, a rank's weights take that.
//
// Steps: two sends and two receives per bucket (on 2 ranks one of each); hierarchical: a reduce and
// a broadcast on the host around them.
// Bytes: with E the size of a bucket encoded, each rank (hierarchical: each host's leader) sends
// 2 E, on 2 ranks E, alone none; hierarchical: and the reduce and the broadcast on each host.
// Result: the neighbours' replicas bitwise; ranks differ.
// Source: Tang et al., Communication Compression for Decentralized Training, arXiv 1803.06443,
// DCD-PSGD, on a ring with weights 1/3; Bagua.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/compressed_algorithm.h"
#include "algorithms/stage/tier_stages.h"
#include "comm/communicator.h"
#include "comm/reduction/linear_combination.h"
#include "comm/reduction/reduction.h"
#include "comm/scratch.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

constexpr absl::string_view kRingExchange = "ring exchange";
constexpr absl::string_view kResidualName = "residual";

// A rank's place on the ring, and what its neighbours' weights count.
struct RingPlace {
  int32_t left = 0;
  int32_t right = 0;  // the left one on 2 ranks
  double left_factor = 0;
  double right_factor = 0;

  bool has_two_neighbours() const { return left != right; }
};

// `sizes[rank]` are the ranks that each rank of the ring stands for. Requires: two ranks or more.
RingPlace PlaceOf(Rank rank, absl::Span<const int32_t> sizes) {
  const auto count = static_cast<int32_t>(sizes.size());
  const auto size_of = [&](int32_t r) {
    return static_cast<double>(sizes[static_cast<size_t>(r)]);
  };
  RingPlace place;
  place.left = (rank.value() + count - 1) % count;
  place.right = (rank.value() + 1) % count;
  const double mine = size_of(rank.value());
  place.left_factor = std::min(1.0, size_of(place.left) / mine) / 3;
  place.right_factor = std::min(1.0, size_of(place.right) / mine) / 3;
  return place;
}

// The step of the head of this file.
// Threads: as Stage. Owns: the messages of a round, and a bucket's worth of differences.
class RingExchangeStage final : public Stage {
 public:
  struct Parts {
    std::shared_ptr<const Codec> codec;  // shared by the stages of all buckets
    bool error_feedback = false;
    RingPlace place;
    CommunicatorId communicator;
    std::unique_ptr<Scratch> messages;  // of mine, the left and the right one
    uint64_t message_bytes = 0;
  };

  explicit RingExchangeStage(Parts parts) : parts_(std::move(parts)) {}
  absl::string_view name() const override { return kRingExchange; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    for (absl::string_view replica : {"weight", "left", "right"}) {
      state->Add({.name = replica,
                  .dtype = layout.dtype,
                  .scope = StateScope::kReplica,
                  .begins_as_weights = true,
                  .count = layout.flat_count});
    }
    if (parts_.error_feedback) {
      state->Add({.name = kResidualName,
                  .dtype = FeedbackDType(layout.dtype),
                  .scope = StateScope::kOwn,
                  .count = layout.flat_count});
    }
    return state;
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    batch_.Clear();
    if (run.layout().flat_count == 0) return absl::OkStatus();
    Encode(run, *state);
    Post(OperationKind::kSend, parts_.place.left, 0);
    if (parts_.place.has_two_neighbours()) Post(OperationKind::kSend, parts_.place.right, 0);
    Post(OperationKind::kRecv, parts_.place.left, parts_.message_bytes);
    if (parts_.place.has_two_neighbours()) {
      Post(OperationKind::kRecv, parts_.place.right, 2 * parts_.message_bytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    ASSIGN_OR_RETURN(const bool done, batch_.Advance(run));
    if (done && run.layout().flat_count > 0) Update(run, *state);
    return done;
  }

 private:
  static constexpr size_t kWeight = 0;
  static constexpr size_t kLeft = 1;
  static constexpr size_t kRight = 2;
  static constexpr size_t kResidual = 3;

  static std::byte* Buffer(const StageState& state, size_t index) {
    return state.buffers()[index].data;
  }

  void Encode(const BucketRun& run, const StageState& state) {
    const DType dtype = run.layout().dtype;
    const uint64_t count = run.layout().flat_count;
    const RingPlace& place = parts_.place;
    difference_.resize(count * SizeOf(dtype));
    const Term terms[] = {
        {run.flat(), 1, dtype},
        {Buffer(state, kLeft), place.left_factor, dtype},
        {Buffer(state, kRight), place.right_factor, dtype},
        {Buffer(state, kWeight), -(1 + place.left_factor + place.right_factor), dtype}};
    LinearCombination(terms, {difference_.data(), dtype}, count);
    std::byte* const message = parts_.messages->data();
    if (!parts_.error_feedback) {
      return parts_.codec->Encode(difference_.data(), count, dtype, message);
    }
    decoded_.resize(difference_.size());
    EncodeWithFeedback(*parts_.codec, difference_.data(), count, dtype, Buffer(state, kResidual),
                       message, decoded_.data());
  }

  void Post(OperationKind kind, int32_t peer, uint64_t offset_bytes) {
    batch_.Add(SendOrReceiveOf(kind, Rank(peer), parts_.message_bytes,
                               parts_.messages->At(offset_bytes), parts_.communicator));
  }

  void Update(const BucketRun& run, const StageState& state) {
    AddMessage(run, 0, {Buffer(state, kWeight), run.flat()});
    // One neighbour on both sides has sent one message.
    if (!parts_.place.has_two_neighbours()) {
      return AddMessage(run, 1, {Buffer(state, kLeft), Buffer(state, kRight)});
    }
    AddMessage(run, 1, {Buffer(state, kLeft)});
    AddMessage(run, 2, {Buffer(state, kRight)});
  }

  // The first of `targets`, and with it the others, becomes itself + what message `index` says.
  void AddMessage(const BucketRun& run, uint64_t index, std::initializer_list<std::byte*> targets) {
    const DType dtype = run.layout().dtype;
    const uint64_t count = run.layout().flat_count;
    const std::byte* const message = parts_.messages->data() + index * parts_.message_bytes;
    parts_.codec->Decode(message, count, dtype, difference_.data());
    const std::byte* const terms[] = {*targets.begin(), difference_.data()};
    Reduce(terms, {targets.begin(), targets.size()}, count, dtype, ReduceOp::kSum);
  }

  const Parts parts_;
  std::vector<std::byte> difference_;
  std::vector<std::byte> decoded_;  // with error feedback
  OperationBatch batch_;
};

// Threads: as Algorithm. Owns: its options.
class LowPrecisionDecentralized final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("communication_interval", &schedule_.interval, 1,
                "steps from one round to the next");
    table.Bool("hierarchical", &hierarchical_,
               "false: every rank is on the ring; true: every host is");
    compression_.Bind(table);
  }
  absl::Status CheckOptions() override { return compression_.Finish(); }
  std::string BytesSent() const override {
    return "two encoded buckets, on 2 ranks one; hierarchical: from each host's leader";
  }

  Schedule schedule() const override { return schedule_; }
  bool IsHierarchical() const override { return hierarchical_; }

  PlanConstraints Constraints() const override {
    return {.allows_standalone = false, .packs_slots = true};  // a gap would be part of the chunk
  }
  bool Takes(const TensorSpec& tensor) const override {
    return IsFloatingPoint(tensor.dtype) && compression_.codec()->Takes(tensor.dtype);
  }
  bool RanksAgree() const override { return false; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    const auto add_exchange = [&](Communicator& ranks, const std::vector<int32_t>& sizes) {
      return AddExchange(ranks, sizes, layout, spec);
    };
    RETURN_IF_ERROR(AddExchangeOfPeers(tiers, hierarchical_, ReduceOp::kAvg, add_exchange, spec));
    return spec;
  }

 private:
  // `sizes`: as PlaceOf.
  absl::Status AddExchange(Communicator& ring, const std::vector<int32_t>& sizes,
                           const BucketLayout& layout, PipelineSpec& spec) const {
    if (sizes.size() == 1) {
      if (compression_.error_feedback()) {
        spec.stages.push_back(MakeDeliverStage(kRingExchange, layout, {{.name = kResidualName}}));
      }
      spec.stages.push_back(MakeLocalStage("no-op exchange", [](auto&&...) {}));
      return absl::OkStatus();
    }
    RingExchangeStage::Parts parts;
    parts.codec = compression_.codec();
    parts.error_feedback = compression_.error_feedback();
    parts.place = PlaceOf(ring.rank(), sizes);
    parts.communicator = ring.id();
    parts.message_bytes = parts.codec->EncodedBytes(layout.flat_count, layout.dtype);
    ASSIGN_OR_RETURN(
        parts.messages,
        Scratch::Create(ring, "ring messages", std::max<uint64_t>(3 * parts.message_bytes, 1)));
    spec.stages.push_back(std::make_unique<RingExchangeStage>(std::move(parts)));
    return absl::OkStatus();
  }

  Schedule schedule_{.source = Source::kWeights, .trigger = TriggerKind::kAfterStep};
  bool hierarchical_ = true;
  CompressionOptions compression_{"min_max_uint8"};
};

REGISTER_ALGORITHM(low_precision_decentralized,
                   "weights averaged on a ring, as compressed differences",
                   LowPrecisionDecentralized);

}  // namespace
}  // namespace pelton
