// CHOCO-SGD: decentralized training in which every rank tells its neighbours in a graph, in a
// codec's few bits, how far its weights are from what it has told of them so far. Whatever the
// codec, also one that drops nearly everything, what is left is told later.
//
// State per bucket, both of which begin as the initial model, the same on all ranks: h, what this
// rank has told of its weights so far, and s, the sum over it and its neighbours of weight times
// what each has told. With x the weights after an optimizer's step, W the graph's weights, D(q)
// what the message q decodes to and c the consensus rate:
//   q = encode(x - h), the bucket as one chunk, to every neighbour
//   h += D(q);  s += W_ii D(q) + the sum over the neighbours j, ascending, of W_ij D(q of j)
//   x += c (s - h)
// The graph is the same in every step and symmetric, so that the s - h of all ranks add up to zero
// and the mean over the ranks is kept, up to rounding. With a c of 1 ranks must not take turns over
// it for ever, as two do that have no own weights; a smaller c leaves each rank some of its own. h
// and s are float32 for tensors of 16 bits, which would round away what is told late. There is no
// error feedback: x - h has what earlier messages lack. A rank without neighbours keeps its
// weights.
//
// c must be the smaller the more a codec drops. `auto` is 1 for codecs whose error is below half of
// the largest element (min_max_uint8, block_uint8, block_int4 and the casts), else 0.02 (one_bit,
// top_k): with top_k at 1 % four ranks on a ring come to their mean at 0.02 and part at 0.1.
//
// In a global round (global_interval; Gossip-PGA, arXiv 2105.09080) x becomes the exact mean of all
// ranks' x, which nobody has to be told: h = s = x.
//
// Another number of ranks goes on with h = s = the weights, which are all ranks' alike then.
//
// Steps: a send and a receive for each neighbour per bucket.
// Bytes: with E the size of a bucket encoded, E to each neighbour: on a ring 2 E, on 2 ranks E. In
// a global round those of an allreduce of the bucket. Result: ranks differ; a rank's s is what its
// neighbours' h make it, up to the rounding of sums. Source: Koloskova et al., Decentralized
// Stochastic Optimization and Gossip Algorithms with Compressed Communication, arXiv 1902.00340,
// algorithm 2, in the form of its appendix that keeps two vectors however many neighbours there
// are; its gamma is c. There h and s begin at zero.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/compressed_algorithm.h"
#include "algorithms/stage/graph_options.h"
#include "algorithms/stage/neighbor_mean.h"
#include "comm/graph/graph_sequence.h"
#include "comm/reduction/linear_combination.h"
#include "comm/scratch.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

constexpr double kRateOfLossyCodecs = 0.02;

// The step of the head of this file.
// Threads: as Stage. Owns: the messages of a round, and a bucket's worth of differences.
class ChocoStage final : public Stage {
 public:
  struct Parts {
    std::shared_ptr<const Codec> codec;  // shared by the stages of all buckets
    double rate = 1;
    Neighborhood neighborhood;
    CommunicatorId communicator;
    uint64_t global_interval = 0;
    std::unique_ptr<Scratch> mine;  // the message of this rank
    std::unique_ptr<NeighborMessages> messages;
  };

  explicit ChocoStage(Parts parts) : parts_(std::move(parts)) {}
  absl::string_view name() const override { return "compressed gossip"; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    const std::initializer_list<absl::string_view> names = {"told", "sum"};
    return std::make_unique<FlatState>(layout, FeedbackDType(layout.dtype), names,
                                       StateScope::kReplica);
  }

  void Prime(const BucketLayout& layout, const std::byte* flat, StageState& state) const override {
    if (layout.flat_count == 0) return;
    const Term initial[] = {{flat, 1, layout.dtype}};
    for (const StateBuffer& buffer : state.buffers()) {
      LinearCombination(initial, {buffer.data, buffer.dtype}, layout.flat_count);
    }
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    is_global_ = IsMultiple(run, parts_.global_interval);
    const bool meets_anyone = is_global_ || !parts_.neighborhood.sources.empty();
    takes_part_ = run.layout().flat_count > 0 && meets_anyone;
    if (!takes_part_) return absl::OkStatus();
    const DType dtype = run.layout().dtype;
    const uint64_t count = run.layout().flat_count;
    if (is_global_) {
      global_.Clear();
      global_.Add(AllReduceOf(ReduceOp::kAvg, dtype, count, run.segments().front().location,
                              parts_.communicator));
      return absl::OkStatus();
    }
    const StateBuffer& told = state->buffers()[kTold];
    difference_.resize(count * SizeOf(told.dtype));
    const Term terms[] = {{run.flat(), 1, dtype}, {told.data, -1, told.dtype}};
    LinearCombination(terms, {difference_.data(), dtype}, count);
    parts_.codec->Encode(difference_.data(), count, dtype, parts_.mine->data());
    return parts_.messages->Begin(parts_.neighborhood, parts_.mine->At(0));
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    if (!takes_part_) return true;
    if (is_global_) {
      ASSIGN_OR_RETURN(const bool done, global_.Advance(run));
      // All ranks have told the same now, and their neighbours' weights add up to 1.
      if (done) Prime(run.layout(), run.flat(), *state);
      return done;
    }
    ASSIGN_OR_RETURN(const bool done, parts_.messages->Advance(run));
    if (done) Update(run, *state);
    return done;
  }

 private:
  static constexpr size_t kTold = 0;
  static constexpr size_t kSum = 1;

  void Update(const BucketRun& run, const StageState& state) {
    const StateBuffer& told = state.buffers()[kTold];
    const StateBuffer& sum = state.buffers()[kSum];
    Decode(run, parts_.mine->data());
    AddDecoded(run, 1, told);
    AddDecoded(run, parts_.neighborhood.own, sum);
    for (size_t i = 0; i < parts_.neighborhood.sources.size(); ++i) {
      Decode(run, parts_.messages->from(i));
      AddDecoded(run, parts_.neighborhood.sources[i].weight, sum);
    }
    // The difference first: both are large where it is small.
    const Term apart[] = {{sum.data, 1, sum.dtype}, {told.data, -1, told.dtype}};
    LinearCombination(apart, {difference_.data(), told.dtype}, run.layout().flat_count);
    const DType dtype = run.layout().dtype;
    const Term moved[] = {{run.flat(), 1, dtype}, {difference_.data(), parts_.rate, told.dtype}};
    LinearCombination(moved, {run.flat(), dtype}, run.layout().flat_count);
  }

  void Decode(const BucketRun& run, const std::byte* message) {
    parts_.codec->Decode(message, run.layout().flat_count, run.layout().dtype, difference_.data());
  }

  void AddDecoded(const BucketRun& run, double weight, const StateBuffer& target) const {
    const Term terms[] = {{target.data, 1, target.dtype},
                          {difference_.data(), weight, run.layout().dtype}};
    LinearCombination(terms, {target.data, target.dtype}, run.layout().flat_count);
  }

  const Parts parts_;
  std::vector<std::byte> difference_;  // or what a message decodes to, or s - h
  bool takes_part_ = false;
  bool is_global_ = false;
  OperationBatch global_;
};

// Threads: as Algorithm. Owns: its options.
class ChocoSgd final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    graph_.Bind(table);
    table.NumberOrAuto(
        "consensus_rate", &rate_, kFraction,
        "how far a round goes towards the neighbours; auto: 1, but 0.02 with a codec "
        "that may drop whole elements");
    compression_.BindCodec(table);
    table.Refuse("error_feedback", "what a message lacks is part of the next in any case");
    table.Refuse("hierarchical", std::string(GraphOptions::kWhyNotHierarchical));
  }
  absl::Status CheckOptions() override { return compression_.Finish(); }
  std::string BytesSent() const override {
    return "an encoded bucket to each neighbour; in global rounds those of an allreduce of B bytes";
  }

  Schedule schedule() const override { return graph_.schedule(); }
  PlanConstraints Constraints() const override {
    return {.allows_standalone = false, .packs_slots = true};  // a gap would be part of the chunk
  }
  bool Takes(const TensorSpec& tensor) const override {
    return IsFloatingPoint(tensor.dtype) && compression_.Takes(tensor.dtype);
  }
  bool RanksAgree() const override { return false; }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    Communicator& communicator = *tiers.all;
    ChocoStage::Parts parts;
    parts.codec = compression_.codec();
    parts.rate = rate_.value_or(parts.codec->Bound().of_largest < 0.5 ? 1 : kRateOfLossyCodecs);
    ASSIGN_OR_RETURN(const Graph graph, graph_.StaticSymmetric(communicator.world_size()));
    if (parts.rate == 1) RETURN_IF_ERROR(graph_.CheckMixes(graph));
    parts.communicator = communicator.id();
    parts.global_interval = graph_.global_interval();
    parts.neighborhood = graph.Of(communicator.rank());
    const uint64_t bytes = parts.codec->EncodedBytes(layout.flat_count, layout.dtype);
    ASSIGN_OR_RETURN(parts.mine,
                     Scratch::Create(communicator, "gossip message", std::max<uint64_t>(bytes, 1)));
    parts.messages =
        std::make_unique<NeighborMessages>(communicator, "neighbours' messages", bytes);
    PipelineSpec spec;
    spec.stages.push_back(std::make_unique<ChocoStage>(std::move(parts)));
    return spec;
  }

 private:
  GraphOptions graph_;
  std::optional<double> rate_;
  CompressionOptions compression_{"min_max_uint8"};
};

REGISTER_ALGORITHM(
    choco_sgd,
    "weights averaged with the neighbours in a graph, as compressed differences that "
    "later ones complete",
    ChocoSgd);

}  // namespace
}  // namespace pelton
