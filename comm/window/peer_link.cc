#include "comm/window/peer_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "core/actor/wait_hook.h"
#include "core/actor/waker.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// A rank that does not run takes no goodbye.
constexpr absl::Duration kGoodbyeTime = absl::Milliseconds(500);

absl::Status ClosedError() {
  return absl::FailedPreconditionError("the job of these windows has ended");
}

// Parks on the wire: what it brings ends the park, and so does PeerLink::Wake.
ThreadExecutor::Options ThreadOf(Communicator& communicator) {
  ThreadExecutor::Options options;
  options.name = "pelton-window";
  options.park = [&communicator](Waker&, absl::Duration at_most) {
    communicator.Park(Clock::Real().Now() + at_most);
  };
  return options;
}

absl::Time StopDeadline() { return WaitClock().Now() + limits::kStopTimeout; }

// Waits in pieces, so that a signal of the process ends the wait. OK: the answer has come.
absl::Status WaitFor(const Future<bool>& answer, Rank peer, const MovingDeadline& deadline) {
  const auto end_of_piece = [&deadline] {
    const absl::Time now = WaitClock().Now();
    return std::min(deadline.At(now), now + kInterruptInterval);
  };
  while (!answer.WaitUntil(end_of_piece())) {
    RETURN_IF_ERROR(CheckInterrupt());
    const absl::Time now = WaitClock().Now();
    if (now < deadline.At(now)) continue;
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", peer.value(), " has not answered in time"));
  }
  return absl::OkStatus();
}

}  // namespace

PeerLink::PeerLink(std::unique_ptr<Communicator> communicator, Rank peer, Executor* executor,
                   const ActorRef<Actor>& parent)
    : peer_(peer), communicator_(std::move(communicator)) {
  if (executor == nullptr) {
    own_executor_ = std::make_unique<ThreadExecutor>(ThreadOf(*communicator_));
    executor = own_executor_.get();
  }
  // Not restarted: the other rank would not know what of its questions the former one had answered.
  SpawnOptions spawn;
  spawn.name = absl::StrCat("window link to rank ", peer.value());
  spawn.executor = executor;
  spawn.ends_with_parent = false;
  actor_ =
      SpawnUnder<LinkActor>(parent, std::move(spawn), communicator_.get(), peer, &waits_for_mutex_);
}

PeerLink::~PeerLink() { Close(); }

void PeerLink::Wake() { communicator_->Wake(); }

absl::Status PeerLink::Serve(uint64_t window, ServedWindow served) {
  if (communicator_ == nullptr) return ClosedError();
  Future<void> answer = actor_.Ask(ServeWindow{window, std::move(served), {}}, StopDeadline());
  Wake();
  return std::move(answer).Await(StopDeadline());
}

void PeerLink::StopServing(uint64_t window) {
  if (communicator_ == nullptr) return;
  const absl::Time deadline = StopDeadline();
  Future<void> answer = actor_.Ask(pelton::StopServing{window, {}}, absl::InfiniteFuture());
  Wake();
  if (!answer.WaitUntil(deadline)) {
    communicator_->Abort(absl::CancelledError(
        absl::StrCat("a window was freed while rank ", peer_.value(), " used it")));
    Wake();
  }
  (void)std::move(answer).Await(deadline + limits::kStopTimeout);
}

Future<bool> PeerLink::Ask(const LinkQuestion& question) {
  if (communicator_ == nullptr) return Future<bool>::Completed(ClosedError());
  Future<bool> answer = actor_.Ask(AskPeer{question, {}}, absl::InfiniteFuture());
  Wake();
  return answer;
}

absl::Status PeerLink::AwaitTransfer(Future<bool> answer, const MovingDeadline& deadline) {
  const absl::Status waited = WaitFor(answer, peer_, deadline);
  if (!waited.ok()) {
    communicator_->Abort(waited);
    Wake();
  }
  const absl::Status status = std::move(answer).Await(absl::InfiniteFuture()).status();
  return waited.ok() ? status : waited;
}

absl::StatusOr<bool> PeerLink::AwaitMutex(Future<bool> answer, const MovingDeadline& deadline) {
  RETURN_IF_ERROR(WaitFor(answer, peer_, deadline));
  return std::move(answer).Await(absl::InfiniteFuture());
}

void PeerLink::OnUnlock() {
  if (communicator_ == nullptr || !waits_for_mutex_.load()) return;
  (void)actor_.Send(LookAround{});  // a full mailbox has it look around anyway
  Wake();
}

void PeerLink::Close() {
  if (communicator_ == nullptr) return;
  Future<void> answer = actor_.Ask(CloseLink{}, absl::InfiniteFuture());
  Wake();
  if (!answer.WaitUntil(WaitClock().Now() + kGoodbyeTime)) {
    communicator_->Abort(ClosedError());
    Wake();
  }
  // What has not ended by the deadline is dropped by force, and the wire is silent then.
  StopAndWait(actor_, StopDeadline()).IgnoreError();
  own_executor_.reset();
  communicator_.reset();
}

absl::Status PeerLinks::Connect(const std::vector<Rank>& peers, std::vector<Rank>& connected,
                                absl::Time deadline) {
  // All ranks take the pairs of ranks in one order, by the lower and then by the higher, so nobody
  // waits in a circle.
  for (const Rank peer : peers) {
    if (at(peer) != nullptr) continue;
    absl::StatusOr<std::unique_ptr<Communicator>> opened =
        open_(peer, static_cast<uint32_t>(window_count_), deadline);
    if (!opened.ok()) {
      return Annotate(opened.status(), absl::StrCat("the link to rank ", peer.value()));
    }
    links_[peer] = std::make_unique<PeerLink>(*std::move(opened), peer, executor_, parent_);
    connected.push_back(peer);
  }
  return absl::OkStatus();
}

void PeerLinks::Disconnect(const std::vector<Rank>& peers) {
  for (const Rank peer : peers) links_.erase(peer);
}

PeerLink* PeerLinks::at(Rank peer) const {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second.get();
}

void PeerLinks::Close() {
  for (const auto& [peer, link] : links_) link->Close();
}

}  // namespace pelton
