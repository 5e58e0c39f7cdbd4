#include "core/round/blocking_stage.h"

#include <utility>

#include "core/base/status.h"

namespace pelton {

absl::Status BlockingCall::Make() {
  // What left the turn would end the caller, and with it the functions of all buckets.
  try {
    // It goes before the answer comes, so that whoever has the answer may end what it works on.
    return Function(std::move(function_))();
  } catch (...) {
    return ExceptionIn(stage_);
  }
}

void BlockingCall::WakeSleepers() const {
  sleepers_->ForEach([](OperationRunner* runner) { runner->Wake(); });
}

void StageCaller::Handle(RunCall message) {
  if (message.reply.cancelled()) return;  // its round has ended without it
  message.reply.Set(message.call.Make());
  message.call.WakeSleepers();
}

BlockingStage::~BlockingStage() {
  if (runner_ != nullptr) sleepers_->Remove(runner_);
}

absl::Status BlockingStage::Start(BucketRun& run, StageState* state) {
  if (runner_ == nullptr) {
    runner_ = &run.runner();
    sleepers_->Add(runner_);
  }
  answer_ =
      caller_.Ask(RunCall{BlockingCall(std::string(name()), MakeCall(run, state), sleepers_), {}},
                  absl::InfiniteFuture());
  return absl::OkStatus();
}

absl::StatusOr<bool> BlockingStage::Advance(BucketRun&, StageState*) {
  if (!answer_.ready()) return false;
  RETURN_IF_ERROR(std::move(answer_).Take());
  return true;
}

}  // namespace pelton
