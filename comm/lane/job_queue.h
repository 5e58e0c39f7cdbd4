// The jobs of one communicator: what of them is launched, and what has ended.
#ifndef PELTON_COMM_LANE_JOB_QUEUE_H_
#define PELTON_COMM_LANE_JOB_QUEUE_H_

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/lane/job.h"
#include "core/base/moving_deadline.h"

namespace pelton::lane {

// The collectives are launched in the order in which they are given (ORDER-1), and so are a user's
// sends and a user's receives, of which a bounded number is in flight. Collectives end in the order
// of their calls, too.
// Threads: one at a time, that which drives the lane. Owns: the jobs until they have ended.
class JobQueue {
 public:
  // `standstill`: for how long deadlines do not come nearer; null: they always do.
  explicit JobQueue(Communicator& communicator, const Standstill* standstill = nullptr)
      : communicator_(communicator), standstill_(standstill) {}

  // Takes `jobs` over, which are in the order of their calls.
  void Take(std::vector<JobHandle>& jobs);
  // Launches what can be launched, asks what has become of the rest, and adds the jobs that have
  // ended to `ended`: they have their status and no closures any more, but are not marked as done.
  // Those whose finish lasts come to `unfinished` before: somebody is to call RunFinish for each.
  void Advance(std::vector<JobHandle>& ended, std::vector<JobHandle>& unfinished);
  // Afterwards Advance ends the job. Threads: any. Blocks: as the job's closure.
  static void RunFinish(JobState& job);
  // Aborts the communicator if a job is past its deadline, which is moved if it has stood still.
  void AbortOverdue(absl::Time now);
  // No job's deadline is earlier.
  absl::Time earliest_deadline() const { return earliest_deadline_; }
  bool IsIdle() const;

 private:
  using Backlog = std::deque<JobHandle>;
  static size_t IndexOf(const JobState& job) { return static_cast<size_t>(job.job_.queue); }

  void MoveDeadlines(absl::Time now);
  void LaunchBacklogs();
  bool LaunchFirst(Backlog& backlog);
  bool IsPostponed(const JobState& job) const;
  void LaunchPostponed();
  bool HasRoomFor(const JobState& job) const;
  bool LaunchNext(JobState& job);
  void Poll(JobState& job);
  bool ExtendJobs();
  static bool IsOver(const JobState& job);
  static bool MustFinish(const JobState& job);
  void End(const JobHandle& job);
  std::string WhatIsMissing(const JobState& job) const;
  absl::Status WhyOverdue(const JobState& job) const;

  Communicator& communicator_;
  std::array<Backlog, Job::kQueues> backlogs_;       // not wholly launched
  std::array<size_t, Job::kQueues> in_flight_ = {};  // operations
  std::deque<JobHandle> jobs_;                       // launched, at least in part, or postponed
  // Receives from any rank without a message so far, and later ones of their tags.
  std::deque<JobHandle> postponed_;
  absl::Time earliest_deadline_ = absl::InfiniteFuture();
  const Standstill* const standstill_;
  absl::Duration stood_;  // by how much deadlines were moved so far
};

}  // namespace pelton::lane

#endif  // PELTON_COMM_LANE_JOB_QUEUE_H_
