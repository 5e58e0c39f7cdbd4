// Rounds of a model beside training: the driver of algorithms whose trigger is
// TriggerKind::kTimer.
#ifndef PELTON_BACKEND_AVERAGING_LOOP_H_
#define PELTON_BACKEND_AVERAGING_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/executor.h"
#include "core/actor/promise.h"
#include "core/actor/thread_executor.h"
#include "core/base/ids.h"
#include "core/base/limits.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"

namespace pelton {

class AveragingActor;

// Threads: a value, moved into Create. Owns: its callbacks.
struct AveragingLoopOptions {
  absl::Duration pause = absl::ZeroDuration();  // Schedule::pause; at least 100 us are kept
  bool ranks_share_rounds = true;               // Schedule::ranks_share_rounds
  // Longest time from a snapshot to its result: how late a rank may be with its own snapshot.
  absl::Duration round_timeout = limits::kDefaultOperationTimeout;
  // Copies the weight behind a slot, as it is now, to `target`; adds `difference` to that weight.
  // Called for every slot but the stop tensor's, one call at a time, while nobody holds a claim: on
  // the loop's thread, or on one that is inside Claim or Stop. Must not block, throw, or call the
  // loop. Shape: both as the slot's tensor.
  absl::AnyInvocable<absl::Status(SlotId slot, std::byte* target)> copy_in;
  absl::AnyInvocable<void(SlotId slot, const std::byte* difference)> add;
  // Of rounds that ranks do not share: why the ranks can do nothing together any more, OK while
  // they can. Asked before each round, because none of its operations would say so. Must not block;
  // may be null.
  absl::AnyInvocable<absl::Status()> failure;
  // Runs the loop; outlives it. Null: a thread of the loop's own.
  Executor* executor = nullptr;
  // Is told when the loop's actor fails, and may end before it; may be nobody.
  ActorRef<Actor> parent;
  std::string model_name = "model";  // for reports
};

// How it is used:
//
//   tensors.push_back(AveragingLoop::StopTensor());  // last, where all ranks share a round
//   auto model = Model::Create(backend, {.algorithm = "async_model_average", ...}, tensors);
//   auto loop = AveragingLoop::Create(model->rounds(), {.pause = schedule.pause, ...});
//   loop->Resume();                                  // on every rank; begins with a round
//   for (each step) {
//     loop->Claim(deadline);                         // before anything reads or writes the weights
//     forward, backward, optimizer step
//     loop->Release();
//   }
//   loop->Stop(deadline);                            // on every rank, each in its own time
//
// A round: when the weights are free, copy_in for all of them; communication, during which they are
// the trainer's to claim; when they are free again, add for all of them; the pause. What is due
// when a claim ends is done before the next is granted, so a claim waits for at most one copy, and
// no round waits for more than one claim.
//
// Stopping is agreed on: each rank's wish travels with its rounds, and all ranks end after the same
// round, the first to which all have come with the wish. Until then a rank that has asked goes on
// taking part, and nothing is aborted. The communicator stays, so the ranks may resume.
//
// Rounds that ranks do not share (Schedule::ranks_share_rounds) carry no wish. A rank that has
// asked ends its own rounds with the one under way and begins its last one, in
// RoundMode::kCollecting: the scheduler lets it wait at a barrier until all ranks have come to
// theirs, for as long as that lasts, and then this rank takes in what was sent to it before. The
// stop tensor is of no use to them.
//
// The end of a failure: a round that fails (a rank died or left, or came later than the time-out)
// ends the loop on every rank with that status, which all its calls return from then on. Of rounds
// that ranks do not share it ends this rank's; the others' end with it before their next round
// where the job has failed, else at the barrier before their last.
// Threads: any; the rounds are the loop's alone while it lives. Owns: its thread; borrows the
// rounds, which outlive it.
class AveragingLoop {
 public:
  // Carries the wish; a float32 of its own among the model's tensors.
  static TensorSpec StopTensor();

  // A loop that has been stopped: see Resume. Errors: InvalidArgument: a callback is missing, a
  // duration is negative, or the plan of rounds that ranks share has no stop tensor, or that of
  // others has one.
  static absl::StatusOr<std::unique_ptr<AveragingLoop>> Create(ModelRounds& rounds,
                                                               AveragingLoopOptions options);
  // Without a Stop that was OK: ends this rank's part at once, which is a failure to the others.
  // Blocks: at most limits::kStopTimeout.
  ~AveragingLoop();
  AveragingLoop(const AveragingLoop&) = delete;
  AveragingLoop& operator=(const AveragingLoop&) = delete;

  // The weights are the caller's until Release. A second Claim changes nothing. Blocks: until
  // `deadline`, while a copy is under way. Errors: why the loop has failed (the claim holds all the
  // same); DeadlineExceeded: this claim never holds.
  absl::Status Claim(absl::Time deadline);
  // Without a claim it does nothing. Blocks: never.
  void Release();

  // Lets go of a claim, asks to stop, and waits until all ranks have asked: then the loop has
  // stopped on all of them, and the results of its last round are in the weights; of rounds that
  // ranks do not share, another rank's last one may still be under way. OK at once where it has
  // stopped already. Blocks: until `deadline`. Errors: why the loop has failed; DeadlineExceeded:
  // says which ranks had not asked, or how many had (the wish stands); Cancelled: resumed.
  absl::Status Stop(absl::Time deadline);
  // Goes on with rounds, or withdraws the wish to stop. Every rank must call it; until the last one
  // has, the others' first round waits, at most the time-out of a round, and their next Stop where
  // ranks do not share rounds. These begin again after the last one where it has begun. Does
  // nothing where the loop runs. Errors: why the loop has failed.
  absl::Status Resume();

  // Claim and Stop for callers that must not block, such as actors.
  Future<void> RequestClaim();
  Future<void> RequestStop(absl::Time deadline);

 private:
  AveragingLoop() = default;
  uint64_t NextClaim();
  Future<void> Ask(uint64_t claim);

  std::atomic<uint64_t> last_claim_{0};
  std::optional<ThreadExecutor> own_executor_;
  ActorRef<AveragingActor> actor_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_AVERAGING_LOOP_H_
