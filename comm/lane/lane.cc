#include "comm/lane/lane.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/actor/wait_hook.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton::lane {
namespace {

// Times the communicator's spins, how often a thread looks for the end of what it has enqueued:
// some 5 us in shared memory.
constexpr int kLooks = 10;

}  // namespace

// Gives the driver's role back. Threads: the one that has it. Owns: that role.
struct Lane::Role {
  ~Role() {
    MutexLock lock(&lane.mutex_);
    lane.Release();
  }
  Lane& lane;
};

Lane::Lane(std::shared_ptr<Communicator> communicator, StartAttendant start,
           const Standstill* standstill)
    : communicator_(std::move(communicator)),
      start_attendant_(std::move(start)),
      jobs_(*communicator_, standstill) {}

std::shared_ptr<Lane> Lane::Create(std::shared_ptr<Communicator> communicator, StartAttendant start,
                                   const Standstill* standstill) {
  return {new Lane(std::move(communicator), std::move(start), standstill),
          DeleteUnlessForked<Lane>()};
}

JobHandle Lane::Add(Job job) {
  auto state = std::make_shared<JobState>(std::move(job), sequence_.fetch_add(1) + 1);
  if (stopped_) {
    state->status_ = absl::FailedPreconditionError(
        absl::StrCat(state->name(), ": the process group is shut down"));
    state->done_.store(true, std::memory_order_release);
    return state;
  }
  ++unfinished_;
  incoming_.push_back(state);
  has_incoming_.store(true);
  return state;
}

// A hop to an attendant and back takes many times as long as a small operation whose peers come
// within a few microseconds.
void Lane::LookFor(const JobState& job, Due& due) {
  for (int looks = kLooks * communicator_->spins(); looks > 0 && !job.done(); --looks) {
    if (!due.unfinished.empty()) return;  // its own, or one before which it does not end
    if (communicator_->Progress()) AdvanceJobs(due);
  }
}

JobHandle Lane::Enqueue(Job job) {
  const bool is_collective = job.queue == Job::Queue::kCollectives;
  JobHandle state;
  {
    MutexLock lock(&mutex_);
    state = Add(std::move(job));
    if (driven_) {
      communicator_->Wake();
      return state;
    }
    driven_ = true;
    driven_by_attendant_ = false;
  }
  Due due;
  {
    const Role role{*this};
    AdvanceJobs(due);  // shows it to the peers at once
    if (is_collective) LookFor(*state, due);
  }
  Call(std::move(due), /*drives_next=*/false);
  return state;
}

JobHandle Lane::Run(Job job) {
  JobHandle state;
  {
    MutexLock lock(&mutex_);
    state = Add(std::move(job));
  }
  WaitFor(state, absl::InfiniteFuture());
  return state;
}

bool Lane::Wait(const JobHandle& job, absl::Time deadline) {
  if (!job->done()) WaitFor(job, deadline);
  return job->done();
}

void Lane::WaitFor(const JobHandle& job, absl::Time deadline) {
  const CallName named(job->name());
  Visit visit(*this, Visit::Aim::kJob, deadline, job);
  Follow(visit);
}

bool Lane::TakeIfFree() {
  MutexLock lock(&mutex_);
  if (driven_ || stopped_ || unfinished_ > 0) return false;
  driven_ = true;
  return true;
}

absl::Status Lane::TakeWhenFree(absl::Duration timeout) {
  Visit visit(*this, Visit::Aim::kIdle, WaitClock().Now() + timeout);
  Follow(visit);
  if (std::exchange(visit.drives_, false)) return absl::OkStatus();  // the caller has its role
  RETURN_IF_ERROR(visit.interrupted());
  MutexLock lock(&mutex_);
  if (stopped_) return absl::FailedPreconditionError("the communicator is shut down");
  return absl::DeadlineExceededError(
      absl::StrCat("rank ", communicator_->rank().value(), ": another call has kept communicator ",
                   communicator_->id().value(), "; calls of one group run one after the other"));
}

absl::Status Lane::Borrow(absl::Duration timeout,
                          absl::FunctionRef<absl::Status(Communicator&)> call) {
  if (!TakeIfFree()) RETURN_IF_ERROR(TakeWhenFree(timeout));
  const Role role{*this};
  return call(*communicator_);
}

void Lane::OnDone(const JobHandle& job, JobState::Callback callback) {
  {
    MutexLock lock(&mutex_);
    if (!job->done()) {
      job->on_done_ = std::move(callback);
      return;
    }
  }
  callback(job->status());
}

void Lane::Follow(Visit& visit) {
  for (Visit::Next next; (next = visit.Step()) != Visit::Next::kEnd;) {
    if (next == Visit::Next::kYield) {
      sched_yield();
    } else if (next == Visit::Next::kCall) {
      visit.Call();
    } else if (next != Visit::Next::kGoOn) {
      Sleep(visit, /*on_wire=*/next == Visit::Next::kPark);
    }
  }
}

void Lane::Sleep(Visit& visit, bool on_wire) {
  if (WaitHook* hook = WaitHook::Current()) {
    hook->WaitUntil([&] { return on_wire && communicator_->Progress(); }, visit.until());
  } else if (on_wire) {
    communicator_->Park(visit.until());
  } else {
    visit.waker_.Park(visit.until() - Clock::Real().Now());
  }
}

void Lane::AdvanceJobs(Due& due) {
  if (has_incoming_.load()) {
    MutexLock lock(&mutex_);
    has_incoming_.store(false);
    taken_.swap(incoming_);
  }
  jobs_.Take(taken_);
  const size_t unfinished = due.unfinished.size();
  jobs_.Advance(ended_, due.unfinished);
  const size_t added = due.unfinished.size() - unfinished;
  if (ended_.empty() && added == 0) return;
  MutexLock lock(&mutex_);
  finishing_ += static_cast<int64_t>(added);
  for (const JobHandle& job : ended_) MarkDone(job, due);
  ended_.clear();
}

void Lane::MarkDone(const JobHandle& job, Due& due) {
  if (!job->status_.ok() && !job->interrupted_.ok()) {
    job->status_ = Annotate(job->interrupted_, job->name());
  }
  --unfinished_;
  if (job->on_done_) due.callbacks.emplace_back(std::move(job->on_done_), job);
  job->done_.store(true, std::memory_order_release);
  for (Visit* visit : waiting_) {
    if (visit->job_ == job) visit->Kick();
  }
}

// Finishes wait for nobody, while a callback may wait for the end of a job that is finished here.
void Lane::Call(Due due, bool drives_next) {
  for (const JobHandle& job : due.unfinished) {
    const bool returns_next = job == due.unfinished.back() && due.callbacks.empty();
    JobQueue::RunFinish(*job);
    MutexLock lock(&mutex_);
    --finishing_;
    if (driven_) {
      communicator_->Wake();  // whoever drives may have parked
    } else if (!returns_next || !drives_next) {
      PassOn();
    }
  }
  for (auto& [callback, job] : due.callbacks) callback(job->status());
}

void Lane::Release() {
  driven_ = driven_by_attendant_ = false;
  PassOn();
}

void Lane::PassOn() {
  if (driven_) return;
  const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                 [](const Visit* visit) { return !visit->IsJobDone(); });
  if (next != waiting_.end()) return (*next)->Kick();
  if (unfinished_ > finishing_) CallAttendant();
}

// All that attend may be in callbacks, which wait for the very job that nobody drives.
void Lane::CallAttendant() {
  if (attendant_is_called_ || stopped_) return;
  attendant_is_called_ = !attendants_.empty() || threads_.size() < kMostThreads;
  if (!attendants_.empty()) return attendants_.back()->Kick();
  if (threads_.size() == kMostThreads) return;
  if (start_attendant_) return start_attendant_(*this);
  threads_.emplace_back([self = shared_from_this()] {
    Visit visit(*self, Visit::Aim::kAttend, absl::InfiniteFuture());
    self->Follow(visit);
  });
  pthread_setname_np(threads_.back().native_handle(), "pelton-lane");
}

void Lane::Stop() {
  if (IsForkedChild()) return;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    stopped_ = true;
    if (unfinished_ > 0) {
      Abort(absl::AbortedError(absl::StrCat("rank ", communicator_->rank().value(),
                                            " shut its process group down while ", unfinished_,
                                            " operation(s) were in flight")));
    }
    for (Visit* attendant : attendants_) attendant->Kick();
  }
  {
    Visit visit(*this, Visit::Aim::kClose, WaitClock().Now() + limits::kStopTimeout);
    Follow(visit);
  }
  std::vector<std::thread> ended;
  {
    MutexLock lock(&mutex_);
    ended = std::exchange(threads_, {});
  }
  for (std::thread& thread : ended) {
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();  // ALLOW: a callback on it is what lets go of the process group
    } else {
      thread.join();
    }
  }
  // One of them may have been at a finish until now.
  Visit rest(*this, Visit::Aim::kClose, WaitClock().Now());
  Follow(rest);
}

Visit::Visit(Lane& lane, Aim aim, absl::Time deadline, JobHandle job)
    : lane_(lane),
      aim_(aim),
      deadline_(deadline),
      job_(std::move(job)),
      attended_(*lane.communicator_),
      backoff_(BackoffOn(*lane.communicator_)) {}

Visit::~Visit() {
  if (!drives_ && !stands_by_) return;
  MutexLock lock(&lane_.mutex_);
  StandByNoMore();
  if (drives_) lane_.Release();
}

Visit::Next Visit::Join() {
  // Before the lock, because the thread that has Python's may want this one.
  if (stands_by_) LookUp(WaitClock().Now());
  MutexLock lock(&lane_.mutex_);
  if (aim_ == Aim::kAttend) lane_.attendant_is_called_ = false;
  if (IsOver()) {
    StandByNoMore();
    lane_.PassOn();
    return Next::kEnd;
  }
  if (!MayDrive()) return StandBy();
  StandByNoMore();
  lane_.driven_ = drives_ = true;
  lane_.driven_by_attendant_ = aim_ == Aim::kAttend;
  backoff_.Reset();
  return Next::kGoOn;
}

bool Visit::IsOver() const {
  if (aim_ == Aim::kAttend) return lane_.stopped_;
  if (aim_ == Aim::kIdle && (lane_.stopped_ || !interrupted().ok())) return true;
  return is_late_ || IsJobDone();
}

bool Visit::MayDrive() const {
  if (lane_.driven_) return false;
  return aim_ != Aim::kAttend || (lane_.waiting_.empty() && lane_.unfinished_ > lane_.finishing_);
}

Visit::Next Visit::StandBy() {
  const bool attends = aim_ == Aim::kAttend;
  until_ = std::min(deadline_,
                    WaitClock().Now() + (attends ? waits::kLongestSleep : kInterruptInterval));
  if (stands_by_) return Next::kStandBy;
  stands_by_ = true;
  (attends ? lane_.attendants_ : lane_.waiting_).push_back(this);
  if (attends) return Next::kStandBy;
  lane_.is_wanted_.store(true);
  if (lane_.driven_by_attendant_) lane_.communicator_->Wake();
  return Next::kStandBy;
}

void Visit::StandByNoMore() {
  if (!stands_by_) return;
  stands_by_ = false;
  std::erase(lane_.waiting_, this);
  std::erase(lane_.attendants_, this);
  lane_.is_wanted_.store(!lane_.waiting_.empty());
}

Visit::Next Visit::Drive() {
  lane_.AdvanceJobs(due_);
  if (!due_.empty()) return Leave(Next::kCall);
  if (IsJobDone()) return Leave(Next::kEnd);
  const bool is_idle = lane_.jobs_.IsIdle() && !lane_.has_incoming_.load();
  if (WaitsForIdle() && is_idle) return Next::kEnd;
  if (aim_ == Aim::kAttend && (is_idle || lane_.is_wanted_.load())) return Leave(Next::kGoOn);
  if (lane_.communicator_->Progress()) {
    backoff_.Reset();
    return Next::kGoOn;
  }
  const Backoff::Next idle = backoff_.OnIdle();
  if (idle == Backoff::Next::kLook) return Next::kGoOn;
  const absl::Time now = WaitClock().Now();
  if (now >= lane_.jobs_.earliest_deadline()) {
    lane_.jobs_.AbortOverdue(now);
    return Next::kGoOn;
  }
  if (LookUp(now)) return Next::kGoOn;
  if (is_late_) return Leave(Next::kEnd);
  until_ = std::min({deadline_, lane_.jobs_.earliest_deadline(), now + waits::kLongestParkOnWire});
  return idle == Backoff::Next::kYield ? Next::kYield : Next::kPark;
}

Visit::Next Visit::Leave(Next next) {
  MutexLock lock(&lane_.mutex_);
  drives_ = false;
  lane_.Release();
  return next;
}

bool Visit::LookUp(absl::Time now) {
  is_late_ = now >= deadline_;
  const bool is_attended = aim_ == Aim::kJob || aim_ == Aim::kIdle;
  // Once interrupted it waits for the abort to end the job.
  if (!is_attended || !interrupted().ok() || attended_.GoesOn(now, drives_)) return false;
  if (job_ != nullptr) {
    MutexLock lock(&lane_.mutex_);
    job_->interrupted_ = interrupted();
  }
  lane_.Abort(AsAbort(interrupted()));
  return true;
}

}  // namespace pelton::lane
