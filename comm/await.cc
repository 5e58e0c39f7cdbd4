#include "comm/await.h"

#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

constexpr int kYields = 200;
constexpr absl::Duration kParkSlice = absl::Milliseconds(20);

std::string RanksOf(const std::vector<Rank>& ranks) {
  return absl::StrJoin(ranks, ", ",
                       [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); });
}

absl::Status TimedOut(Communicator& communicator, Completion completion) {
  const std::vector<Rank> missing = communicator.Missing();
  absl::Status status = absl::DeadlineExceededError(
      absl::StrCat("rank ", communicator.rank().value(), ": operation ", completion.ticket,
                   " of communicator ", communicator.id().value(), " missed its deadline; ",
                   missing.empty() ? "every rank has arrived"
                                   : absl::StrCat("waiting for rank(s) ", RanksOf(missing))));
  communicator.Abort(status);
  return status;
}

absl::Status AwaitSimulated(WaitHook& hook, Communicator& communicator, Completion completion,
                            absl::Time deadline) {
  auto done = [&] {
    communicator.Progress();
    return communicator.Query(completion).done;
  };
  if (!hook.WaitUntil(done, deadline)) return TimedOut(communicator, completion);
  return communicator.Query(completion).status;
}

}  // namespace

absl::Status Await(Communicator& communicator, Completion completion, absl::Time deadline) {
  if (WaitHook* hook = WaitHook::Current()) {
    return AwaitSimulated(*hook, communicator, completion, deadline);
  }
  const int spins = communicator.spins();
  int idle = 0;
  while (true) {
    const OperationRunner::State state = communicator.Query(completion);
    if (state.done) return state.status;
    if (communicator.Progress()) {
      idle = 0;
      continue;
    }
    if (++idle <= spins) continue;
    const absl::Time now = Clock::Real().Now();
    if (now >= deadline) return TimedOut(communicator, completion);
    if (idle <= spins + kYields) {
      sched_yield();
    } else {
      communicator.Park(std::min(deadline, now + kParkSlice));
    }
  }
}

}  // namespace pelton
