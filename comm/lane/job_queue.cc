#include "comm/lane/job_queue.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "core/actor/wait_hook.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton::lane {
namespace {

// A user's messages may stay unmatched for long, so collectives need room beside them, and sends
// beside receives: two ranks may receive more than there is room for before either sends.
constexpr size_t kMostMessages = limits::kMaxOperationsInFlight / 2 - 32;
constexpr size_t kMostOfOneQueue = kMostMessages - 16;

// Runs what may throw: PyTorch refuses by exceptions, and no caller is there to catch them.
absl::Status Guarded(absl::FunctionRef<void()> run) {
  try {
    run();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    const std::string text = error.what();  // the first line: the rest is C++'s stack
    return absl::InternalError(
        absl::StrCat("its results could not be stored: ", text.substr(0, text.find('\n'))));
  } catch (...) {
    return absl::InternalError("its results could not be stored");
  }
}

}  // namespace

void JobQueue::Take(std::vector<JobHandle>& jobs) {
  if (jobs.empty()) return;
  MoveDeadlines(WaitClock().Now());  // those of the others: the new ones are of now
  for (JobHandle& job : jobs) {
    earliest_deadline_ = std::min(earliest_deadline_, job->job_.deadline);
    Backlog& backlog = backlogs_[IndexOf(*job)];
    backlog.push_back(std::move(job));
  }
  jobs.clear();
}

bool JobQueue::IsIdle() const {
  return jobs_.empty() && std::all_of(backlogs_.begin(), backlogs_.end(),
                                      [](const Backlog& backlog) { return backlog.empty(); });
}

void JobQueue::Advance(std::vector<JobHandle>& ended, std::vector<JobHandle>& unfinished) {
  do {
    LaunchBacklogs();
    LaunchPostponed();
    for (const JobHandle& job : jobs_) Poll(*job);
  } while (ExtendJobs());
  // Two may be over of which only the later one was, when it was asked for, and the earlier one may
  // be at its finish: collectives end in the order of their calls all the same.
  bool is_held = false;
  std::erase_if(jobs_, [&](const JobHandle& job) {
    const bool is_collective = job->job_.queue == Job::Queue::kCollectives;
    if (!IsOver(*job) || (is_collective && is_held)) {
      is_held |= is_collective;
      return false;
    }
    if (MustFinish(*job)) {
      job->job_.deadline = absl::InfiniteFuture();  // it has made it
      job->finishing_.store(JobState::Finishing::kUnderWay, std::memory_order_relaxed);
      unfinished.push_back(job);
      is_held |= is_collective;
      return false;
    }
    End(job);
    ended.push_back(job);
    return true;
  });
}

// In the order of the calls as far as nothing stands in the way; then each queue on its own.
void JobQueue::LaunchBacklogs() {
  std::array<bool, Job::kQueues> is_blocked = {};
  while (true) {
    std::optional<size_t> next;
    for (size_t queue = 0; queue < Job::kQueues; ++queue) {
      if (is_blocked[queue] || backlogs_[queue].empty()) continue;
      const bool is_earlier = !next.has_value() || backlogs_[queue].front()->sequence() <
                                                       backlogs_[*next].front()->sequence();
      if (is_earlier) next = queue;
    }
    if (!next.has_value()) return;
    is_blocked[*next] = !LaunchFirst(backlogs_[*next]);
  }
}

// Whether the queue's first job is wholly launched, or has failed.
bool JobQueue::LaunchFirst(Backlog& backlog) {
  const JobHandle job = backlog.front();
  if (!job->begun_) {
    job->begun_ = true;
    jobs_.push_back(job);
  }
  if (IsPostponed(*job)) {
    postponed_.push_back(job);
    backlog.pop_front();
    return true;
  }
  while (job->status_.ok() && job->launched_ < job->job_.launches.size()) {
    if (!LaunchNext(*job)) return false;
  }
  // The queue is in the same order on all ranks only if what is still to come has its place in it.
  if (job->status_.ok() && job->job_.more) return false;
  backlog.pop_front();
  return true;
}

bool JobQueue::IsPostponed(const JobState& job) const {
  if (job.job_.is_from_any) return true;
  if (!job.job_.receive_tag.has_value()) return false;
  return std::any_of(postponed_.begin(), postponed_.end(), [&](const JobHandle& earlier) {
    return earlier->job_.receive_tag == job.job_.receive_tag;
  });
}

void JobQueue::LaunchPostponed() {
  std::vector<std::optional<int32_t>> waiting;  // tags whose oldest receive has no message
  std::erase_if(postponed_, [&](const JobHandle& job) {
    const std::optional<int32_t> tag = job->job_.receive_tag;
    if (std::find(waiting.begin(), waiting.end(), tag) != waiting.end()) return false;
    if (LaunchNext(*job)) return true;
    waiting.push_back(tag);
    return false;
  });
}

bool JobQueue::HasRoomFor(const JobState& job) const {
  if (job.job_.queue == Job::Queue::kCollectives) return true;
  const size_t messages = in_flight_[1] + in_flight_[2];
  return messages < kMostMessages && in_flight_[IndexOf(job)] < kMostOfOneQueue;
}

// False if the communicator has no room for it now, or no message.
bool JobQueue::LaunchNext(JobState& job) {
  if (!HasRoomFor(job)) return false;
  absl::StatusOr<Completion> completion = job.job_.launches[job.launched_](communicator_);
  if (absl::IsResourceExhausted(completion.status())) return false;
  ++job.launched_;
  if (!completion.ok()) {
    job.status_ = completion.status();
    return true;
  }
  job.running_.push_back(*completion);
  ++in_flight_[IndexOf(job)];
  return true;
}

void JobQueue::Poll(JobState& job) {
  in_flight_[IndexOf(job)] -= std::erase_if(job.running_, [&](Completion completion) {
    OperationRunner::State state = communicator_.Query(completion);
    if (state.done && job.status_.ok()) job.status_ = std::move(state.status);
    return state.done;
  });
}

// Whether there is something new to launch.
bool JobQueue::ExtendJobs() {
  bool is_extended = false;
  for (const JobHandle& job : jobs_) {
    Job& call = job->job_;
    const bool is_due = job->running_.empty() && job->launched_ == call.launches.size();
    if (!is_due || !call.more || !job->status_.ok()) continue;
    std::vector<Job::Launch> more;
    job->status_ = Guarded([&] { more = call.more(); });
    if (more.empty()) call.more = nullptr;
    std::move(more.begin(), more.end(), std::back_inserter(call.launches));
    is_extended = true;
  }
  return is_extended;
}

// Whether nothing of `job` is left to launch or to wait for.
bool JobQueue::IsOver(const JobState& job) {
  if (!job.running_.empty()) return false;
  // Another thread may be writing its status.
  if (job.finishing_.load(std::memory_order_acquire) == JobState::Finishing::kUnderWay)
    return false;
  return !job.status_.ok() || (job.launched_ == job.job_.launches.size() && !job.job_.more);
}

// Whether it is over but for a finish that lasts.
bool JobQueue::MustFinish(const JobState& job) {
  return job.job_.finish_lasts && job.status_.ok() && job.job_.finish != nullptr &&
         job.finishing_.load(std::memory_order_relaxed) == JobState::Finishing::kNotYet;
}

void JobQueue::RunFinish(JobState& job) {
  job.status_ = Guarded([&] { job.job_.finish(); });
  job.job_.finish = nullptr;  // large memory takes long to be given back, too
  job.finishing_.store(JobState::Finishing::kOver, std::memory_order_release);
}

void JobQueue::End(const JobHandle& job) {
  Backlog& backlog = backlogs_[IndexOf(*job)];
  if (!backlog.empty() && backlog.front() == job) backlog.pop_front();  // failed half way
  if (job->status_.ok() && job->job_.finish) job->status_ = Guarded([&] { job->job_.finish(); });
  job->status_ = Annotate(job->status_, job->name());
  if (job->job_.ended) job->job_.ended();
  job->job_ = Job();  // lets go of the tensors, which may need Python's lock
}

std::string JobQueue::WhatIsMissing(const JobState& job) const {
  if (job.job_.is_from_any && job.launched_ == 0) {
    return absl::StrCat("rank ", communicator_.rank().value(),
                        ": no rank has sent a message of tag ", job.job_.receive_tag.value_or(0));
  }
  const Completion oldest = job.running_.empty() ? Completion() : job.running_.front();
  // With the call: a peer may be at another one, and reads this.
  std::string missing =
      absl::StrCat(MissedDeadline(communicator_, oldest).message(), " in ", job.name());
  const size_t under_way = in_flight_[IndexOf(job)];
  if (job.job_.queue != Job::Queue::kCollectives && under_way >= kMostOfOneQueue) {
    absl::StrAppend(&missing, "; ", under_way,
                    " operations are under way and the next one begins when one of them has ended: "
                    "begin fewer before waiting for some");
  }
  return missing;
}

absl::Status JobQueue::WhyOverdue(const JobState& job) const {
  const std::string missing = WhatIsMissing(job);
  const absl::Status& overdue = job.job_.overdue;
  if (!overdue.ok()) {
    return absl::Status(overdue.code(), absl::StrCat(overdue.message(), "; ", missing));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "Timed out after ", absl::ToInt64Milliseconds(job.job_.timeout), " ms; ", missing));
}

void JobQueue::MoveDeadlines(absl::Time now) {
  if (standstill_ == nullptr) return;
  const absl::Duration total = standstill_->Total(now);
  const absl::Duration added = total - std::exchange(stood_, total);
  if (added <= absl::ZeroDuration()) return;
  earliest_deadline_ += added;
  for (const JobHandle& job : jobs_) job->job_.deadline += added;
  for (const Backlog& backlog : backlogs_) {
    for (const JobHandle& job : backlog) {
      if (!job->begun_) job->job_.deadline += added;  // the others are in jobs_, too
    }
  }
}

void JobQueue::AbortOverdue(absl::Time now) {
  if (now < earliest_deadline_) return;
  MoveDeadlines(now);
  if (now < earliest_deadline_) return;
  earliest_deadline_ = absl::InfiniteFuture();
  const auto look = [&](const std::deque<JobHandle>& jobs) {
    for (const JobHandle& job : jobs) {
      if (job->job_.deadline <= now) {
        job->job_.deadline = absl::InfiniteFuture();
        communicator_.Abort(WhyOverdue(*job));
      }
      earliest_deadline_ = std::min(earliest_deadline_, job->job_.deadline);
    }
  };
  look(jobs_);
  for (const Backlog& backlog : backlogs_) look(backlog);
}

}  // namespace pelton::lane
