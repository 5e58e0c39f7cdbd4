#include "comm/collectives/program_communicator.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collectives/program_run.h"
#include "comm/communicator.h"
#include "comm/tags.h"
#include "comm/transport/operation_check.h"
#include "core/base/limits.h"
#include "core/base/sharing.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"

namespace pelton {

Rank Agreement::next() const {
  return Rank((communicator_.rank().value() + 1) % communicator_.world_size().value());
}

Rank Agreement::previous() const {
  const int32_t n = communicator_.world_size().value();
  return Rank((communicator_.rank().value() + n - 1) % n);
}

void Agreement::Start(const Operation& operation) {
  mine_ = operation;
  mine_.set_source({});  // addresses are nobody else's business
  mine_.set_target({});
  const bool is_alone = communicator_.world_size() == WorldSize(1);
  send_launched_ = recv_launched_ = send_done_ = recv_done_ = is_alone;
}

absl::Status Agreement::LaunchMessages() {
  Operation message;
  message.dtype = DType::kUInt8;
  message.count = sizeof(Operation);
  message.tag = tag_;
  HostStream stream;
  if (!send_launched_) {
    message.kind = OperationKind::kSend;
    message.peer = next().value();
    message.set_source(Locate(&mine_, sizeof(mine_)));
    ASSIGN_OR_RETURN(send_, communicator_.Launch(message, stream));
    send_launched_ = true;
  }
  if (!recv_launched_) {
    message.kind = OperationKind::kRecv;
    message.peer = previous().value();
    message.set_source({});
    message.set_target(Locate(&theirs_, sizeof(theirs_)));
    ASSIGN_OR_RETURN(recv_, communicator_.Launch(message, stream));
    recv_launched_ = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Agreement::Advance() {
  const absl::Status launched = LaunchMessages();
  if (!launched.ok() && !absl::IsResourceExhausted(launched)) return launched;
  if (send_launched_ && !send_done_) {
    const OperationRunner::State state = communicator_.Query(send_);
    RETURN_IF_ERROR(state.status);
    send_done_ = state.done;
  }
  if (recv_launched_ && !recv_done_) {
    const OperationRunner::State state = communicator_.Query(recv_);
    RETURN_IF_ERROR(state.status);
    recv_done_ = state.done;
    if (recv_done_) RETURN_IF_ERROR(Compare());
  }
  return send_done_ && recv_done_;
}

absl::Status Agreement::Compare() const {
  const Rank rank = communicator_.rank();
  const std::string difference = rank < previous() ? DifferenceOf(mine_, rank, theirs_, previous())
                                                   : DifferenceOf(theirs_, previous(), mine_, rank);
  if (difference.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(mine_), ": ", difference));
}

std::optional<Rank> Agreement::Awaited() const {
  if (recv_done_) return std::nullopt;
  return previous();
}

namespace {

constexpr int32_t kAgreementTag = kFirstProgramTag + kMaxProgramStrands;
static_assert(IsCollectiveTag(kAgreementTag));
constexpr size_t kMaxMessages = limits::kMaxOperationsInFlight - kMaxProgramTransfers;

// An abort by any thread is noted, and ends the wire, at once. What is in flight here ends by the
// driving thread's next call after the wire has let go of its memory, which it may still be writing
// to until its Abort returns (OWN-1). Threads: as Communicator. Owns: the wire, the programs and
// the state of the operations in flight.
class ProgramCommunicator final : public ForwardingCommunicator {
 public:
  ProgramCommunicator(std::unique_ptr<Communicator> wire, SelectionTable table)
      : ForwardingCommunicator(std::move(wire)),
        programs_(std::move(table)),
        run_(wrapped()),
        agreement_(wrapped(), kAgreementTag) {
    for (int32_t r = 0; r < world_size().value(); ++r) peers_.emplace_back(r);
  }

  // What is in flight needs this object's memory, which goes before the wire.
  ~ProgramCommunicator() override {
    if (!ended_.is_given() && HasInFlight()) {
      wrapped().Abort(absl::UnavailableError("closed the communicator with operations in flight"));
    }
  }

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  void Abort(const absl::Status& reason) override;
  std::vector<Rank> Missing() const override;

 private:
  struct Message {
    uint64_t ticket = 0;
    Completion on_wire;
    Rank peer;
  };
  struct Collective {
    uint64_t ticket;
    Operation operation;
    OperationMemory memory;
    ProgramCache::Pointer program;
  };

  bool HasInFlight() const { return !messages_.empty() || !collectives_.empty(); }
  absl::Status Check(const Operation& operation, const Stream& stream) const;
  absl::Status LaunchMessage(const Operation& operation, Stream& stream);
  absl::Status LaunchCollective(const Operation& operation);
  bool PollMessages();
  bool AdvanceCollective();
  absl::StatusOr<bool> StepCollective();
  absl::Status Begin(const Collective& collective);
  // Whether the communicator has been aborted; ends what is in flight once the wire has let go.
  bool EndIfAborted();

  std::vector<Rank> peers_;  // all ranks: programs are among all of them
  ProgramCache programs_;
  ProgramRun run_;
  Agreement agreement_;
  CompletionTable completions_;
  uint64_t launched_collectives_ = 0;
  std::vector<Message> messages_;       // in flight, in launch order
  std::deque<Collective> collectives_;  // the first one is under way
  bool begun_ = false;
  bool run_done_ = false;
  bool step_moved_ = false;
  bool has_ended_ = false;  // what was in flight has learned of the abort
  EndReason ended_;
  std::atomic<bool> wire_has_ended_{false};  // the wire's Abort has returned
};

absl::Status ProgramCommunicator::Check(const Operation& operation, const Stream& stream) const {
  RETURN_IF_ERROR(CheckOperation(operation, rank(), world_size()));
  if (stream.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError("stream: recipes run on the host only");
  }
  if (IsPointToPoint(operation.kind) && IsCollectiveTag(operation.tag)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank().value(), ": tag: ", operation.tag, " of ",
                     NameOf(operation.kind), " is one of the collectives'"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Completion> ProgramCommunicator::Launch(const Operation& operation, Stream& stream) {
  RETURN_IF_ERROR(ended_.Get());
  RETURN_IF_ERROR(Check(operation, stream));
  const bool is_message = IsPointToPoint(operation.kind);
  if (is_message) PollMessages();
  if (!completions_.has_room() || (is_message && messages_.size() >= kMaxMessages)) {
    const size_t count = is_message ? messages_.size() : completions_.in_flight();
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank().value(), ": ", count, is_message ? " messages" : " operations",
                     " of communicator ", id().value(), " are in flight, as many as there may be"));
  }
  RETURN_IF_ERROR(is_message ? LaunchMessage(operation, stream) : LaunchCollective(operation));
  const Completion completion = completions_.Begin().completion;
  if (!is_message) AdvanceCollective();
  // The wire had been aborted. Where another thread is still at that, the wire may have the memory,
  // and the completion says when it has not.
  if (has_ended_) return ended_.Get();
  return completion;
}

absl::Status ProgramCommunicator::LaunchMessage(const Operation& operation, Stream& stream) {
  ASSIGN_OR_RETURN(const Completion on_wire, wrapped().Launch(operation, stream));
  messages_.push_back({completions_.launched() + 1, on_wire, Rank(operation.peer)});
  return absl::OkStatus();
}

absl::Status ProgramCommunicator::LaunchCollective(const Operation& operation) {
  Collective collective{completions_.launched() + 1, operation, {}, nullptr};
  ASSIGN_OR_RETURN(collective.memory, ResolveOperation(operation, rank(), world_size()));
  ASSIGN_OR_RETURN(collective.program, programs_.Get(ShapeOf(operation, rank(), world_size())));
  collective.operation.sequence = ++launched_collectives_;
  collective.operation.communicator = id();
  collectives_.push_back(std::move(collective));
  return absl::OkStatus();
}

bool ProgramCommunicator::Progress() {
  bool moved = wrapped().Progress();
  if (EndIfAborted()) return moved;
  moved |= PollMessages();
  moved |= AdvanceCollective();
  return moved;
}

bool ProgramCommunicator::PollMessages() {
  size_t kept = 0;
  for (const Message& message : messages_) {
    const State state = wrapped().Query(message.on_wire);
    if (state.done) {
      completions_.End(message.ticket, state.status);
    } else {
      messages_[kept++] = message;
    }
  }
  const bool moved = kept < messages_.size();
  messages_.resize(kept);
  return moved;
}

absl::Status ProgramCommunicator::Begin(const Collective& collective) {
  const Operation& operation = collective.operation;
  agreement_.Start(operation);
  run_done_ = false;
  return run_.Start(*collective.program, {.source = collective.memory.source,
                                          .target = collective.memory.target,
                                          .dtype = operation.dtype,
                                          .reduce_op = operation.reduce_op,
                                          .divisor = world_size().value(),
                                          .peers = peers_,
                                          .tag = kFirstProgramTag,
                                          .kind = operation.kind,
                                          .bucket = operation.bucket});
}

// The first collective, or the one that comes after it.
bool ProgramCommunicator::AdvanceCollective() {
  bool moved = false;
  while (!collectives_.empty()) {
    const absl::StatusOr<bool> done = StepCollective();
    if (!done.ok()) {
      Abort(done.status());
      EndIfAborted();
      return true;
    }
    if (!*done) return moved || step_moved_;
    completions_.End(collectives_.front().ticket, absl::OkStatus());
    collectives_.pop_front();
    begun_ = false;
    moved = true;
  }
  return moved;
}

absl::StatusOr<bool> ProgramCommunicator::StepCollective() {
  step_moved_ = false;
  if (!begun_) {
    RETURN_IF_ERROR(Begin(collectives_.front()));
    begun_ = true;
  }
  ASSIGN_OR_RETURN(const bool agreed, agreement_.Advance());
  // Messages leave in the same order on all ranks: the record first.
  if (!agreement_.is_launched()) return false;
  if (!run_done_) {
    ASSIGN_OR_RETURN(run_done_, run_.Advance());
    step_moved_ = run_.moved();
  }
  return agreed && run_done_;
}

OperationRunner::State ProgramCommunicator::Query(Completion completion) {
  EndIfAborted();
  return completions_.Query(completion);
}

void ProgramCommunicator::Abort(const absl::Status& reason) {
  if (!ended_.Give(reason)) return;
  wrapped().Abort(ended_.Get());
  wire_has_ended_.store(true);
  wrapped().Wake();  // the thread that drives may have parked since the wire's own wake-up
}

bool ProgramCommunicator::EndIfAborted() {
  if (!ended_.is_given()) return false;
  if (has_ended_ || !wire_has_ended_.load()) return true;
  has_ended_ = true;
  completions_.EndAll(ended_.Get());
  messages_.clear();
  collectives_.clear();
  return true;
}

std::vector<Rank> ProgramCommunicator::Missing() const {
  if (ended_.is_given()) return {};
  if (!messages_.empty() &&
      (collectives_.empty() || messages_.front().ticket < collectives_.front().ticket)) {
    return {messages_.front().peer};
  }
  if (collectives_.empty() || !begun_) return {};
  std::vector<Rank> ranks = run_.Awaited();
  const std::optional<Rank> previous = agreement_.Awaited();
  if (previous.has_value() && std::find(ranks.begin(), ranks.end(), *previous) == ranks.end()) {
    ranks.insert(std::upper_bound(ranks.begin(), ranks.end(), *previous), *previous);
  }
  return ranks;
}

}  // namespace

std::unique_ptr<Communicator> MakeProgramCommunicator(std::unique_ptr<Communicator> wire,
                                                      SelectionTable table) {
  return std::make_unique<ProgramCommunicator>(std::move(wire), std::move(table));
}

}  // namespace pelton
