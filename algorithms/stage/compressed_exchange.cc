#include "algorithms/stage/compressed_exchange.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/codec/error_feedback.h"
#include "algorithms/stage/piece_codec.h"
#include "comm/scratch.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Large enough that the start of two collectives does not show beside its bytes, small enough that
// a bucket of the default size has several.
constexpr uint64_t kPartCount = uint64_t{1} << 19;
// On a device, whose kernels want much to do at once; the next bucket is there to overlap with.
constexpr uint64_t kDevicePartCount = uint64_t{1} << 23;

// The same elements of every rank's chunk.
// Threads: a value. Owns: nothing.
struct Part {
  uint64_t begin = 0;        // in a chunk; elements
  uint64_t count = 0;        // of the largest chunk; elements
  uint64_t chunk_bytes = 0;  // encoded
  // Where the messages to all ranks begin, in the place of which come the reduced ones of all
  // ranks, and those from all ranks. Units: bytes of the scratch.
  uint64_t sent_at = 0;
  uint64_t received_at = 0;
  // Numbers of its operations among the round's.
  size_t scatter = 0;
  size_t gather = 0;
};

uint64_t PieceMultiple(uint64_t count) {
  const uint64_t piece = PieceCodec::kPieceCount;
  return std::max<uint64_t>(1, (count + piece - 1) / piece) * piece;
}

// Threads: as Stage. Owns: the messages.
class CompressedExchangeStage final : public Stage {
 public:
  CompressedExchangeStage(const CompressedExchangeOptions& options, const BucketLayout& layout,
                          const Communicator& ranks, std::unique_ptr<CodecRunner> runner)
      : codec_(options.codec),
        runner_(std::move(runner)),
        dtype_(layout.dtype),
        chunks_(layout.content_count, ranks.world_size().value()),
        communicator_(ranks.id()),
        rank_(ranks.rank().value()),
        rank_count_(ranks.world_size().value()),
        has_feedback_(options.error_feedback),
        is_on_device_(options.device != nullptr) {
    LayOut(is_on_device_ ? kDevicePartCount : kPartCount);
  }

  absl::Status MakeMessages(const std::string& name, Communicator& ranks, DeviceQueue* device) {
    ASSIGN_OR_RETURN(messages_,
                     Scratch::Create(ranks, name, std::max<uint64_t>(message_bytes_, 1), device));
    return absl::OkStatus();
  }

  absl::string_view name() const override { return kCompressedExchange; }
  bool takes_device_memory() const override { return is_on_device_; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    if (!has_feedback_) return nullptr;
    auto state = std::make_unique<FlatState>();
    const DType dtype = FeedbackDType(layout.dtype);
    state->Add({.name = kResidual,
                .dtype = dtype,
                .scope = StateScope::kOwn,
                .count = layout.content_count});
    state->Add({.name = kServerResidual,
                .dtype = dtype,
                .scope = StateScope::kShared,
                .begin_count = chunks_.BeginOf(rank_),
                .count = chunks_.CountOf(rank_)});
    return state;
  }

  absl::Status Start(BucketRun& run, StageState*) override {
    batch_.Clear();
    launched_ = 0;
    step_ = 0;
    action_ = Action::kEncode;
    return runner_->ZeroGaps(run);
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    while (step_ < parts_.size() + 2) {
      ASSIGN_OR_RETURN(const bool acted, Act(run, state));
      if (!acted) return false;
    }
    return true;
  }

  // The last allgather is that of the step before the last; only its decoding is left then.
  bool has_launched_all() const override {
    return launched_ == 2 * parts_.size() && batch_.has_launched_all();
  }

 private:
  // Of step t: encode part t, reduce part t - 1, decode part t - 2, where there are such parts.
  enum class Action { kEncode, kReduce, kDecode };

  void LayOut(uint64_t part_count);
  absl::StatusOr<bool> Act(BucketRun& run, StageState* state);
  absl::Status Encode(BucketRun& run, std::byte* residual, const Part& part);
  absl::Status Reduce(BucketRun& run, std::byte* residual, const Part& part);
  absl::Status Decode(BucketRun& run, const Part& part);
  // Between places in the scratch; the operation's number.
  size_t Launch(OperationKind kind, const Part& part, uint64_t source_at, uint64_t target_at);

  // Of a part of `rank`'s chunk: where it begins in the flat part and how many elements it has.
  uint64_t BeginOf(int32_t rank, const Part& part) const {
    return std::min(chunks_.BeginOf(rank) + part.begin, chunks_.BeginOf(rank + 1));
  }
  uint64_t CountOf(int32_t rank, const Part& part) const {
    return std::min(part.count, chunks_.BeginOf(rank + 1) - BeginOf(rank, part));
  }
  // The messages to all ranks, in the place of which come their reduced ones, and those from all.
  RankMessages Sent(const Part& part) const {
    return {messages_->data() + part.sent_at, part.chunk_bytes, rank_count_};
  }
  RankMessages Received(const Part& part) const {
    return {messages_->data() + part.received_at, part.chunk_bytes, rank_count_};
  }
  static uint64_t Times(int32_t rank, uint64_t bytes) {
    return static_cast<uint64_t>(rank) * bytes;
  }
  // The elements of a residual from `begin` on, if there is one.
  std::byte* RestAt(std::byte* residual, uint64_t begin) const {
    return residual == nullptr ? nullptr : residual + begin * SizeOf(FeedbackDType(dtype_));
  }
  static std::byte* ResidualOf(StageState* state, size_t index) {
    return state == nullptr ? nullptr : static_cast<FlatState*>(state)->data(index);
  }

  const std::shared_ptr<const Codec> codec_;
  const std::unique_ptr<CodecRunner> runner_;
  const DType dtype_;
  const Chunks chunks_;
  const CommunicatorId communicator_;
  const int32_t rank_;
  const int32_t rank_count_;
  const bool has_feedback_;
  const bool is_on_device_;
  std::vector<Part> parts_;
  uint64_t message_bytes_ = 0;
  std::unique_ptr<Scratch> messages_;
  OperationBatch batch_;
  size_t launched_ = 0;
  size_t step_ = 0;
  Action action_ = Action::kEncode;
};

void CompressedExchangeStage::LayOut(uint64_t part_count) {
  const uint64_t share = PieceMultiple(part_count / static_cast<uint64_t>(rank_count_));
  for (uint64_t begin = 0; begin < chunks_.largest_count();) {
    Part& part = parts_.emplace_back();
    part.begin = begin;
    part.count = std::min(share, chunks_.largest_count() - begin);
    part.chunk_bytes = PieceCodec::EncodedBytes(*codec_, dtype_, part.count);
    part.sent_at = message_bytes_;
    part.received_at = part.sent_at + Times(rank_count_, part.chunk_bytes);
    message_bytes_ = part.received_at + Times(rank_count_, part.chunk_bytes);
    begin += part.count;
  }
}

// The next action; false if its message is not here yet.
//
// Why no byte is lost. Each part has a place of its own for what it sends and for what it receives,
// so that parts cannot disturb each other, and within a part each place is written again only when
// nobody reads it any more:
//   - Reduce reads what was received, and writes this rank's reduced chunk over what was sent. It
//     waits for the part's all-to-all to be done here, after which the received bytes are complete
//     and the source is the caller's again.
//   - The allgather puts the other ranks' reduced chunks beside it, also over what was sent. Decode
//     waits for it, and is the only one to write the bucket, whose elements Encode has read in an
//     earlier step on this rank; residuals are written by the part that reads them.
// An action that has to wait returns instead of letting a later one go first. So all ranks launch
// the same operations in the same order, whatever arrives when (ORDER-1): all-to-all 0, all-to-all
// 1, allgather 0, all-to-all 2, allgather 1 and so on. On a device "done" is said in the order of
// the stream, in which the kernels run as well.
absl::StatusOr<bool> CompressedExchangeStage::Act(BucketRun& run, StageState* state) {
  RETURN_IF_ERROR(batch_.Advance(run).status());
  if (action_ == Action::kEncode) {
    if (step_ < parts_.size()) {
      Part& part = parts_[step_];
      RETURN_IF_ERROR(Encode(run, ResidualOf(state, 0), part));
      part.scatter = Launch(OperationKind::kAllToAll, part, part.sent_at, part.received_at);
    }
    action_ = Action::kReduce;
    return true;
  }
  if (action_ == Action::kReduce) {
    if (step_ >= 1 && step_ <= parts_.size()) {
      Part& part = parts_[step_ - 1];
      if (batch_.finished() <= part.scatter) return false;
      RETURN_IF_ERROR(Reduce(run, ResidualOf(state, 1), part));
      part.gather = Launch(OperationKind::kAllGather, part,
                           part.sent_at + Times(rank_, part.chunk_bytes), part.sent_at);
    }
    action_ = Action::kDecode;
    return true;
  }
  if (step_ >= 2) {
    if (batch_.finished() <= parts_[step_ - 2].gather) return false;
    RETURN_IF_ERROR(Decode(run, parts_[step_ - 2]));
  }
  action_ = Action::kEncode;
  ++step_;
  return true;
}

absl::Status CompressedExchangeStage::Encode(BucketRun& run, std::byte* residual,
                                             const Part& part) {
  for (int32_t rank = 0; rank < rank_count_; ++rank) {
    const uint64_t begin = BeginOf(rank, part);
    RETURN_IF_ERROR(runner_->Encode(run, run.flat() + begin * SizeOf(dtype_), CountOf(rank, part),
                                    RestAt(residual, begin),
                                    {Sent(part).of(rank), part.chunk_bytes}));
  }
  return absl::OkStatus();
}

absl::Status CompressedExchangeStage::Reduce(BucketRun& run, std::byte* residual,
                                             const Part& part) {
  return runner_->Merge(run, Received(part), CountOf(rank_, part), RestAt(residual, part.begin),
                        {Sent(part).of(rank_), part.chunk_bytes});
}

absl::Status CompressedExchangeStage::Decode(BucketRun& run, const Part& part) {
  for (int32_t rank = 0; rank < rank_count_; ++rank) {
    RETURN_IF_ERROR(runner_->Decode(run, Sent(part).of(rank), CountOf(rank, part),
                                    run.flat() + BeginOf(rank, part) * SizeOf(dtype_)));
  }
  return absl::OkStatus();
}

size_t CompressedExchangeStage::Launch(OperationKind kind, const Part& part, uint64_t source_at,
                                       uint64_t target_at) {
  Operation operation;
  operation.kind = kind;
  operation.dtype = DType::kUInt8;
  operation.count = part.chunk_bytes;
  operation.communicator = communicator_;
  operation.set_source(messages_->At(source_at));
  operation.set_target(messages_->At(target_at));
  batch_.Add(operation);
  return launched_++;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> MakeCompressedExchangeStage(
    const CompressedExchangeOptions& options, const BucketLayout& layout, Communicator& ranks) {
  ASSIGN_OR_RETURN(std::unique_ptr<CodecRunner> runner, MakeCodecRunner(options, layout.dtype));
  auto stage = std::make_unique<CompressedExchangeStage>(options, layout, ranks, std::move(runner));
  RETURN_IF_ERROR(stage->MakeMessages(absl::StrCat("messages of bucket ", layout.id.value()), ranks,
                                      options.device));
  return stage;
}

}  // namespace pelton
