// A barrier that tells who is missing, with messages that rank 0 counts.
#include <ATen/ops/empty.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/collectives.h"
#include "comm/tags.h"
#include "core/base/clock.h"
#include "torch_bindings/csrc/c10d/process_group.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {

// No deadline of its own: a signal that never comes must not end the group.
JobHandle ProcessGroup::Signal(bool is_send, int peer, int32_t tag) {
  Call call = Begin("monitored_barrier", Call::Use::kMoved);
  call.SetMessage();
  const at::Tensor content = call.Scratch(1, at::empty({0}, at::kByte));
  const Tensor flat{content.data_ptr(), 1, DType::kUInt8};
  call.Launch([=](Communicator& communicator) {
    return is_send ? Send(communicator, flat, Rank(peer), tag)
                   : Recv(communicator, flat, Rank(peer), tag);
  });
  return queue_->Enqueue(call.Take(absl::InfiniteDuration()));
}

void ProcessGroup::MonitorOthers(int32_t tag, Milliseconds timeout, bool wait_all_ranks) {
  const absl::Time deadline = Clock::Real().Now() + absl::FromChrono(timeout);
  std::vector<JobHandle> signals(1);
  for (int rank = 1; rank < getSize(); ++rank) signals.push_back(Signal(false, rank, tag));
  std::vector<int> missing;
  for (int rank = 1; rank < getSize(); ++rank) {
    const JobHandle& signal = signals[static_cast<size_t>(rank)];
    const bool has_come = queue_->Wait(signal, deadline) && signal->status().ok();
    if (!has_come) missing.push_back(rank);
    if (!has_come && !wait_all_ranks) break;
  }
  if (!missing.empty()) {
    ThrowStatus(absl::DeadlineExceededError(
        absl::StrCat("monitored_barrier of process group '", names_.group,
                     "': ", wait_all_ranks ? "Ranks " : "Rank ", absl::StrJoin(missing, ", "),
                     " failed to pass monitoredBarrier in ", timeout.count(), " ms")));
  }
  // Who closes the group with an answer on its way takes it from its receiver.
  for (int rank = 1; rank < getSize(); ++rank) {
    signals[static_cast<size_t>(rank)] = Signal(true, rank, tag);
  }
  for (int rank = 1; rank < getSize(); ++rank) {
    queue_->Wait(signals[static_cast<size_t>(rank)], deadline);
  }
}

void ProcessGroup::ReportToMonitor(int32_t tag, Milliseconds timeout) {
  const JobHandle answer = Signal(false, 0, tag);
  Signal(true, 0, tag);
  const bool has_come = queue_->Wait(answer, Clock::Real().Now() + absl::FromChrono(timeout));
  if (has_come && answer->status().ok()) return;
  const std::string reason = has_come ? std::string(answer->status().message())
                                      : absl::StrCat("no answer within ", timeout.count(), " ms");
  ThrowStatus(absl::DeadlineExceededError(absl::StrCat(
      "monitored_barrier of process group '", names_.group, "': Rank ", getRank(),
      " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
      "from rank 0. Please check rank 0 logs for faulty rank. The error was: ",
      reason)));
}

void ProcessGroup::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) {
  const Milliseconds timeout = TimeoutOf(options.timeout);
  // A signal that came too late belongs to the barrier that missed it, and to no later one.
  const auto barrier_number = static_cast<int32_t>(monitored_.fetch_add(1) % kMonitorTags);
  const int32_t tag = kFirstMonitorTag + barrier_number;
  if (getRank() != 0) return ReportToMonitor(tag, timeout);
  if (timeout <= Milliseconds::zero()) {
    ThrowStatus(absl::DeadlineExceededError(
        absl::StrCat("monitored_barrier of process group '", names_.group,
                     "': Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms")));
  }
  MonitorOthers(tag, timeout, wait_all_ranks);
}

}  // namespace pelton::torch_bindings
