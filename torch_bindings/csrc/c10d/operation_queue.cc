#include "torch_bindings/csrc/c10d/operation_queue.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton::torch_bindings {
namespace {

// A user's messages may stay unmatched for long: collectives need room beside them.
constexpr size_t kMostMessages = limits::kMaxOperationsInFlight / 2 - 32;
constexpr size_t kMostUnpolled = limits::kMaxOperationsInFlight / 2;

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

std::shared_ptr<OperationQueue> OperationQueue::Create(std::shared_ptr<Communicator> communicator) {
  return {new OperationQueue(std::move(communicator)), DeleteUnlessForked<OperationQueue>()};
}

JobHandle OperationQueue::Add(Job job) {
  auto state = std::make_shared<JobState>(std::move(job), sequence_.fetch_add(1) + 1);
  if (stopped_) {
    state->status_ = absl::FailedPreconditionError(
        absl::StrCat(state->job_.name, ": the process group is shut down"));
    state->done_.store(true, std::memory_order_release);
    return state;
  }
  ++unfinished_;
  incoming_.push_back(state);
  has_incoming_.store(true);
  return state;
}

JobHandle OperationQueue::Enqueue(Job job) {
  MutexLock lock(&mutex_);
  JobHandle state = Add(std::move(job));
  if (driven_) {
    communicator_->Wake();
  } else {
    Call(Drive([] { return true; }, absl::InfiniteFuture()));  // shows it to the peers at once
  }
  Attend();
  return state;
}

JobHandle OperationQueue::Run(Job job) {
  MutexLock lock(&mutex_);
  JobHandle state = Add(std::move(job));
  Await(state, absl::InfiniteFuture());
  return state;
}

bool OperationQueue::Wait(const JobHandle& job, absl::Time deadline) {
  if (job->done()) return true;
  MutexLock lock(&mutex_);
  Await(job, deadline);
  return job->done();
}

void OperationQueue::Await(const JobHandle& job, absl::Time deadline) {
  const CallName named(job->name());
  AttendedWait attended(*communicator_);
  AttendedWait* wait = &attended;  // null once it was interrupted: then the abort ends the job
  ++waiters_;
  is_wanted_.store(true);
  if (driven_) communicator_->Wake();
  bool is_late = false;
  while (!job->done() && !is_late) {
    if (driven_) {
      is_late = !AwaitDriver(deadline, wait);
    } else {
      DueCallbacks due = Drive([&] { return job->done(); }, deadline, wait);
      is_late = Clock::Real().Now() >= deadline;
      if (!due.empty()) {
        // A callback may wait, for Python's lock or for another job: somebody else has to drive.
        is_wanted_.store(--waiters_ > 0);
        Call(std::move(due));
        ++waiters_;
        is_wanted_.store(true);
      }
    }
    if (wait == nullptr || wait->interrupted().ok()) continue;
    job->interrupted_ = wait->interrupted();
    Abort(AsAbort(wait->interrupted()));
    wait = nullptr;
  }
  is_wanted_.store(--waiters_ > 0);
  Attend();
}

// Waits a little for the thread that drives; false at `deadline`.
bool OperationQueue::AwaitDriver(absl::Time deadline, AttendedWait* wait) {
  const absl::Time now = Clock::Real().Now();
  waiter_wakes_.WaitWithDeadline(&mutex_, std::min(deadline, now + kInterruptInterval));
  if (wait != nullptr) {
    mutex_.Unlock();  // whoever has Python's lock may want this one
    wait->GoesOn(now);
    mutex_.Lock();
  }
  return Clock::Real().Now() < deadline;
}

void OperationQueue::OnDone(const JobHandle& job, JobState::Callback callback) {
  {
    MutexLock lock(&mutex_);
    if (!job->done()) {
      job->on_done_ = std::move(callback);
      return;
    }
  }
  callback(job->status());
}

void OperationQueue::Stop() {
  if (IsForkedChild()) return;
  const absl::Time deadline = Clock::Real().Now() + limits::kStopTimeout;
  std::vector<std::thread> ended;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    stopped_ = true;
    if (unfinished_ > 0) {
      Abort(absl::AbortedError(absl::StrCat("rank ", communicator_->rank().value(),
                                            " shut its process group down while ", unfinished_,
                                            " operation(s) were in flight")));
    }
    ++waiters_;
    is_wanted_.store(true);
    while (unfinished_ > 0 && Clock::Real().Now() < deadline) {
      if (driven_) {
        waiter_wakes_.WaitWithDeadline(&mutex_, deadline);
      } else {
        Call(Drive([this] { return IsIdle(); }, deadline));
      }
    }
    --waiters_;
    ended = std::exchange(threads_, {});
    thread_wakes_.SignalAll();
  }
  for (std::thread& thread : ended) {
    // A callback on a thread of the queue's may be what lets go of the process group.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

void OperationQueue::Attend() {
  if (waiters_ > 0 && !driven_) waiter_wakes_.SignalAll();
  if (!IsUnattended()) return;
  // Those that are not idle may be in callbacks that wait for the very job that nobody drives.
  if (idle_threads_ > 0 || stopped_ || threads_.size() == kMostThreads) {
    thread_wakes_.Signal();
    return;
  }
  threads_.emplace_back([self = shared_from_this()] { self->RunThread(); });
  pthread_setname_np(threads_.back().native_handle(), "pelton-c10d");
}

void OperationQueue::RunThread() {
  MutexLock lock(&mutex_);
  while (!stopped_) {
    if (IsUnattended()) {
      Call(Drive([this] { return is_wanted_.load() || IsIdle(); }, absl::InfiniteFuture()));
    } else {
      ++idle_threads_;
      thread_wakes_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
      --idle_threads_;
    }
  }
}

OperationQueue::DueCallbacks OperationQueue::Drive(absl::FunctionRef<bool()> stop,
                                                   absl::Time deadline, AttendedWait* wait) {
  driven_ = true;
  mutex_.Unlock();
  Progress(stop, deadline, wait);
  DueCallbacks due = std::move(callbacks_);
  callbacks_.clear();
  mutex_.Lock();
  driven_ = false;
  if (waiters_ > 0) waiter_wakes_.SignalAll();
  return due;
}

void OperationQueue::Call(DueCallbacks callbacks) {
  if (callbacks.empty()) return;
  Attend();
  mutex_.Unlock();
  for (auto& [callback, job] : callbacks) callback(job->status());
  callbacks.clear();  // closures die without the lock
  mutex_.Lock();
}

void OperationQueue::Progress(absl::FunctionRef<bool()> stop, absl::Time deadline,
                              AttendedWait* wait) {
  while (true) {
    const absl::Time until = std::min(deadline, earliest_deadline_);
    auto ready = [&] {
      Advance();
      return stop() || !callbacks_.empty() || earliest_deadline_ < until;
    };
    if (DriveUntil(*communicator_, ready, until, wait)) {
      if (earliest_deadline_ >= until) return;
      continue;
    }
    if (wait != nullptr && !wait->interrupted().ok()) return;
    const absl::Time now = Clock::Real().Now();
    if (now >= earliest_deadline_) AbortOverdue(now);
    if (now >= deadline) return;
  }
}

void OperationQueue::Advance() {
  if (has_incoming_.load()) TakeIncoming();
  do {
    LaunchBacklogs();
    LaunchPostponed();
    for (const JobHandle& job : jobs_) Poll(*job);
  } while (ExtendJobs());
  // Two may be over of which only the later one was, when it was asked for: collectives finish in
  // the order of their calls all the same.
  bool is_held = false;
  std::erase_if(jobs_, [&](const JobHandle& job) {
    const bool is_collective = job->job_.lane == Job::Lane::kCollectives;
    if (!IsOver(*job) || (is_collective && is_held)) {
      is_held |= is_collective;
      return false;
    }
    Finish(job);
    return true;
  });
}

void OperationQueue::TakeIncoming() {
  MutexLock lock(&mutex_);
  has_incoming_.store(false);
  for (JobHandle& job : incoming_) {
    earliest_deadline_ = std::min(earliest_deadline_, job->job_.deadline);
    Backlog& backlog = BacklogOf(*job);
    backlog.push_back(std::move(job));
  }
  incoming_.clear();
}

// In the order of the calls as far as nothing stands in the way; then each lane on its own.
void OperationQueue::LaunchBacklogs() {
  bool is_blocked[2] = {false, false};
  while (true) {
    int next = -1;
    for (int lane = 0; lane < 2; ++lane) {
      if (is_blocked[lane] || backlogs_[lane].empty()) continue;
      const bool is_earlier =
          next < 0 || backlogs_[lane].front()->sequence() < backlogs_[next].front()->sequence();
      if (is_earlier) next = lane;
    }
    if (next < 0) return;
    is_blocked[next] = !LaunchFirst(backlogs_[next]);
  }
}

// Whether the lane's first job is wholly launched, or has failed.
bool OperationQueue::LaunchFirst(Backlog& backlog) {
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
  // The lane is in the same order on all ranks only if what is still to come has its place in it.
  if (job->status_.ok() && job->job_.more) return false;
  backlog.pop_front();
  return true;
}

bool OperationQueue::IsPostponed(const JobState& job) const {
  if (job.job_.is_from_any) return true;
  if (!job.job_.receive_tag.has_value()) return false;
  return std::any_of(postponed_.begin(), postponed_.end(), [&](const JobHandle& earlier) {
    return earlier->job_.receive_tag == job.job_.receive_tag;
  });
}

void OperationQueue::LaunchPostponed() {
  std::vector<std::optional<int32_t>> waiting;  // tags whose oldest receive has no message
  std::erase_if(postponed_, [&](const JobHandle& job) {
    const std::optional<int32_t> tag = job->job_.receive_tag;
    if (std::find(waiting.begin(), waiting.end(), tag) != waiting.end()) return false;
    if (LaunchNext(*job)) return true;
    waiting.push_back(tag);
    return false;
  });
}

// False if the communicator has no room for it now, or no message.
bool OperationQueue::LaunchNext(JobState& job) {
  if (!HasRoomFor(job)) return false;
  absl::StatusOr<Completion> completion = job.job_.launches[job.launched_](*communicator_);
  if (absl::IsResourceExhausted(completion.status())) return false;
  ++job.launched_;
  if (!completion.ok()) {
    job.status_ = completion.status();
    return true;
  }
  job.running_.push_back(*completion);
  if (job.job_.lane == Job::Lane::kMessages) ++messages_in_flight_;
  // A communicator answers for a bounded number of operations: ask before it forgets.
  if (++launched_since_poll_ >= kMostUnpolled) {
    launched_since_poll_ = 0;
    for (const JobHandle& launched : jobs_) Poll(*launched);
  }
  return true;
}

bool OperationQueue::HasRoomFor(const JobState& job) const {
  return job.job_.lane != Job::Lane::kMessages || messages_in_flight_ < kMostMessages;
}

void OperationQueue::Poll(JobState& job) {
  const size_t before = job.running_.size();
  std::erase_if(job.running_, [&](Completion completion) {
    OperationRunner::State state = communicator_->Query(completion);
    if (state.done && job.status_.ok()) job.status_ = std::move(state.status);
    return state.done;
  });
  if (job.job_.lane == Job::Lane::kMessages) messages_in_flight_ -= before - job.running_.size();
}

// Whether there is something new to launch.
bool OperationQueue::ExtendJobs() {
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
bool OperationQueue::IsOver(const JobState& job) const {
  if (!job.running_.empty()) return false;
  return !job.status_.ok() || (job.launched_ == job.job_.launches.size() && !job.job_.more);
}

void OperationQueue::Finish(const JobHandle& job) {
  Backlog& backlog = BacklogOf(*job);
  if (!backlog.empty() && backlog.front() == job) backlog.pop_front();  // failed half way
  if (job->status_.ok() && job->job_.finish) job->status_ = Guarded([&] { job->job_.finish(); });
  job->status_ = Annotate(job->status_, job->job_.name);
  if (job->job_.ended) job->job_.ended();
  job->job_ = Job();  // lets go of the tensors, which may need Python's lock
  MutexLock lock(&mutex_);
  if (!job->status_.ok() && !job->interrupted_.ok()) {
    job->status_ = Annotate(job->interrupted_, job->name());
  }
  --unfinished_;
  if (job->on_done_) callbacks_.emplace_back(std::move(job->on_done_), job);
  job->done_.store(true, std::memory_order_release);
  if (waiters_ > 0) waiter_wakes_.SignalAll();
}

std::string OperationQueue::WhatIsMissing(const JobState& job) const {
  if (job.job_.is_from_any && job.launched_ == 0) {
    return absl::StrCat("rank ", communicator_->rank().value(),
                        ": no rank has sent a message of tag ", job.job_.receive_tag.value_or(0));
  }
  const Completion oldest = job.running_.empty() ? Completion() : job.running_.front();
  return std::string(MissedDeadline(*communicator_, oldest).message());
}

void OperationQueue::AbortOverdue(absl::Time now) {
  earliest_deadline_ = absl::InfiniteFuture();
  for (const std::deque<JobHandle>* jobs : {&jobs_, &backlogs_[0], &backlogs_[1]}) {
    for (const JobHandle& job : *jobs) {
      if (job->job_.deadline > now) {
        earliest_deadline_ = std::min(earliest_deadline_, job->job_.deadline);
        continue;
      }
      job->job_.deadline = absl::InfiniteFuture();
      Abort(absl::DeadlineExceededError(absl::StrCat("Timed out after ",
                                                     absl::ToInt64Milliseconds(job->job_.timeout),
                                                     " ms; ", WhatIsMissing(*job))));
    }
  }
}

}  // namespace pelton::torch_bindings
