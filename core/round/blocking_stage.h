// A stage whose work may block, such as a call of a user's function.
#ifndef PELTON_CORE_ROUND_BLOCKING_STAGE_H_
#define PELTON_CORE_ROUND_BLOCKING_STAGE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/actor/actor.h"
#include "core/actor/actor_ref.h"
#include "core/actor/promise.h"
#include "core/base/sharing.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"

namespace pelton {

// Whoever may be parked on a runner until a call returns. Shared by a stage and its call, because
// either may end first: the stage takes the runner back, and a call that returns later wakes
// nobody.
using Sleepers = SharedList<OperationRunner*>;

// What a stage has called on another thread.
// Threads: a value, moved there. Owns: what the call works on, which may outlive its stage.
class BlockingCall {
 public:
  using Function = absl::AnyInvocable<absl::Status()>;

  // `stage` is named where `function` throws.
  BlockingCall(std::string stage, Function function, std::shared_ptr<const Sleepers> sleepers)
      : stage_(std::move(stage)), function_(std::move(function)), sleepers_(std::move(sleepers)) {}

  // At most once. Blocks: as the function. Errors: those of the function; Internal: it has thrown.
  absl::Status Make();
  // After the answer is there.
  void WakeSleepers() const;

 private:
  std::string stage_;
  Function function_;
  std::shared_ptr<const Sleepers> sleepers_;
};
template <>
inline constexpr bool kSendableType<BlockingCall> = true;

struct RunCall {
  BlockingCall call;
  Promise<void> reply;
};

// Makes the blocking calls of a model's stages, one after the other and in the order of their
// buckets, so that a user's functions never meet each other. It lives on an executor whose turns
// may block (PoolExecutor::Options).
// Threads: as Actor. Owns: the call that it is at.
class StageCaller final : public Actor {
 public:
  void Handle(RunCall message);
};

// A stage that calls something and launches nothing. The call is made by a StageCaller; until it
// has returned the stage is not done, like one whose operations are under way. The actor that
// drives the channel goes on meanwhile with the operations of other buckets, with deadlines and
// with aborts. A call that keeps Python's lock holds up a main thread that drives, because that
// looks for signals between two steps.
//
// Why no wake-up is lost. Whoever drives sees an answer in its next look at the stage, and sleeps
// between two looks only by the runner's Park. The answer is there before the runner's Wake is
// called, and a runner remembers a Wake that comes before its Park. So if a look has come too early
// for the answer, the Park after it ends at once or is ended.
// Threads: as Stage. Owns: the answer's future.
class BlockingStage : public Stage {
 public:
  explicit BlockingStage(ActorRef<StageCaller> caller) : caller_(std::move(caller)) {}
  ~BlockingStage() override;

  absl::Status Start(BucketRun& run, StageState* state) final;
  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) final;
  bool has_launched_all() const final { return true; }
  bool has_call_under_way() const final { return answer_.valid() && !answer_.ready(); }
  void DropCall() final { answer_ = {}; }

 protected:
  // What is to be called. It keeps alive what it works on: no abort ends it, so that it may return
  // after the round and after this stage. Blocks: never.
  virtual BlockingCall::Function MakeCall(BucketRun& run, StageState* state) = 0;

 private:
  const ActorRef<StageCaller> caller_;
  const std::shared_ptr<Sleepers> sleepers_ = std::make_shared<Sleepers>();
  OperationRunner* runner_ = nullptr;  // that is among the sleepers
  Future<void> answer_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_BLOCKING_STAGE_H_
