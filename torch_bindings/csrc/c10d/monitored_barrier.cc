#include "torch_bindings/csrc/c10d/monitored_barrier.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/collectives.h"
#include "comm/lane/job.h"
#include "comm/tags.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {

absl::Status MonitoredBarrier::Pass(const Terms& terms) {
  const absl::Time now = Clock::Real().Now();
  const MovingDeadline deadline(now + terms.timeout, &standstill_, now);
  if (!TakeTurn(deadline)) {
    return absl::DeadlineExceededError(absl::StrCat(
        terms.name, ": Rank ", rank_, ": another thread's barrier on this group has not ended in ",
        absl::ToInt64Milliseconds(terms.timeout), " ms; call it from one thread"));
  }
  const TurnHolder holder(&turn_);
  return rank_ == 0 ? Monitor(terms, deadline) : Report(terms, deadline);
}

// The analysis knows of no turn that is tried for again and again.
bool MonitoredBarrier::TakeTurn(const MovingDeadline& deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  absl::Time now = Clock::Real().Now();
  while (!turn_.Take(deadline.At(now))) {
    now = Clock::Real().Now();
    if (now >= deadline.At(now)) return false;
  }
  return true;
}

bool MonitoredBarrier::Wait(const lane::JobHandle& job, const MovingDeadline& deadline) {
  absl::Time now = Clock::Real().Now();
  while (!lane_->Wait(job, deadline.At(now))) {
    now = Clock::Real().Now();
    if (now >= deadline.At(now)) return false;
  }
  return true;
}

lane::JobHandle MonitoredBarrier::Post(const Terms& terms, int peer, int32_t tag, int64_t value) {
  // Shared: the message may outlive this call.
  const auto content = std::make_shared<int64_t>(value);
  lane::Job job;
  job.name = terms.name;
  job.queue = lane::Job::Queue::kSends;
  job.launches.emplace_back([=](Communicator& communicator) {
    return Send(communicator, {content.get(), 1, DType::kInt64}, Rank(peer), tag);
  });
  return lane_->Enqueue(std::move(job));
}

absl::StatusOr<std::optional<MonitoredBarrier::Message>> MonitoredBarrier::Next(
    int32_t tag, const MovingDeadline& deadline) {
  struct Arrival {
    std::atomic<bool> is_given_up{false};
    std::atomic<int> sender{-1};
    int64_t value = 0;
  };
  const auto arrival = std::make_shared<Arrival>();  // shared with the job
  lane::Job job;
  job.name = "monitored_barrier";
  job.queue = lane::Job::Queue::kReceives;
  job.receive_tag = tag;
  job.is_from_any = true;
  job.launches.emplace_back([=](Communicator& communicator) -> absl::StatusOr<Completion> {
    if (arrival->is_given_up.load()) return absl::CancelledError("nobody waits for it any more");
    return lane::RecvFromAny(communicator, {&arrival->value, 1, DType::kInt64}, tag,
                             arrival->sender);
  });
  const lane::JobHandle receive = lane_->Enqueue(std::move(job));
  if (!Wait(receive, deadline)) {
    arrival->is_given_up.store(true);
    lane_->Wait(receive, Clock::Real().Now() + limits::kStopTimeout);  // it may have begun
  }
  if (!receive->done() || absl::IsCancelled(receive->status())) return std::nullopt;
  RETURN_IF_ERROR(receive->status());
  return Message{arrival->sender.load(), arrival->value};
}

std::vector<int> MonitoredBarrier::Missing() const {
  std::vector<int> missing;
  for (size_t rank = 1; rank < waiting_.size(); ++rank) {
    if (waiting_[rank] == 0) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

// What has come counts in any case: it may be a withdrawal.
absl::Status MonitoredBarrier::AwaitReports(const MovingDeadline& deadline) {
  while (waiting_.size() > 1) {
    const MovingDeadline until = Missing().empty() ? Clock::Real().Now() : deadline;
    ASSIGN_OR_RETURN(const std::optional<Message> report, Next(kReportTag, until));
    if (!report.has_value()) break;
    waiting_[static_cast<size_t>(report->sender)] = std::max<int64_t>(report->value, 0);
  }
  return absl::OkStatus();
}

absl::Status MonitoredBarrier::Monitor(const Terms& terms, const MovingDeadline& deadline) {
  const int64_t milliseconds = absl::ToInt64Milliseconds(terms.timeout);
  if (milliseconds <= 0) {
    return absl::DeadlineExceededError(absl::StrCat(
        terms.name, ": Rank 0 timed out in monitoredBarrier after ", milliseconds, " ms"));
  }
  const absl::Status status = AwaitReports(deadline);
  if (IsInterrupted(status)) return status;
  std::vector<int> missing = Missing();
  if (!missing.empty() || !status.ok()) {
    if (!terms.names_all) missing.resize(std::min<size_t>(missing.size(), 1));
    const std::string reason = status.ok() ? "" : absl::StrCat(": ", status.message());
    return absl::DeadlineExceededError(absl::StrCat(
        terms.name, ": ", terms.names_all ? "Ranks " : "Rank ", absl::StrJoin(missing, ", "),
        " failed to pass monitoredBarrier in ", milliseconds, " ms", reason));
  }
  std::vector<lane::JobHandle> answers;
  for (size_t rank = 1; rank < waiting_.size(); ++rank) {
    answers.push_back(
        Post(terms, static_cast<int>(rank), kAnswerTag, std::exchange(waiting_[rank], 0)));
  }
  // The answers are awaited, because a group that is closed with an answer on its way takes it from
  // its receiver.
  for (const lane::JobHandle& answer : answers) Wait(answer, deadline);
  return absl::OkStatus();
}

absl::Status MonitoredBarrier::Report(const Terms& terms, const MovingDeadline& deadline) {
  const int64_t attempt = ++attempts_;
  Post(terms, 0, kReportTag, attempt);
  absl::StatusOr<std::optional<Message>> answer;
  do {  // an answer to an earlier attempt came when that was over
    answer = Next(kAnswerTag, deadline);
    if (IsInterrupted(answer.status())) return answer.status();
  } while (answer.ok() && answer->has_value() && (*answer)->value != attempt);
  if (answer.ok() && answer->has_value()) return absl::OkStatus();
  if (answer.ok()) Post(terms, 0, kReportTag, -attempt);
  const int64_t milliseconds = absl::ToInt64Milliseconds(terms.timeout);
  return absl::DeadlineExceededError(absl::StrCat(
      terms.name, ": Rank ", rank_,
      " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
      "from rank 0. Please check rank 0 logs for faulty rank. The error was: ",
      answer.ok() ? absl::StrCat("no answer within ", milliseconds, " ms")
                  : std::string(answer.status().message())));
}

}  // namespace pelton::torch_bindings
