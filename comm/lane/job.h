// One call on a communicator, and its state while it runs.
#ifndef PELTON_COMM_LANE_JOB_H_
#define PELTON_COMM_LANE_JOB_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collectives.h"
#include "comm/communicator.h"

namespace pelton::lane {

// What a call launches, and what follows when all of it is done.
// Threads: a value that moves to the lane. Owns: through its closures, the memory it works on.
struct Job {
  using Launch = absl::AnyInvocable<absl::StatusOr<Completion>(Communicator&)>;

  // Jobs of one queue are launched in the order of their calls. A user's messages have queues of
  // their own, because one that is not matched yet must not hold up what every rank takes part in,
  // nor receives the sends that their peers need before they send.
  enum class Queue : uint8_t { kCollectives, kSends, kReceives };
  static constexpr size_t kQueues = 3;

  std::string name;  // for errors: "all_reduce"
  Queue queue = Queue::kCollectives;
  // Of a user's receive, which has one launch: the tag of the message.
  std::optional<int32_t> receive_tag;
  // A receive from any rank: its launch answers ResourceExhausted until there is a message. Jobs
  // that do not receive this tag go by meanwhile; of those that do, the oldest is first.
  bool is_from_any = false;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Duration timeout;  // what the deadline was made of, for errors
  // What a deadline that is missed means, before who is missing; OK: that it timed out.
  absl::Status overdue;
  std::vector<Launch> launches;
  // What to launch once all of `launches` is done; asked again after that, until it answers with
  // nothing. The queue's later jobs wait for it. On the thread that drives the lane; null for none.
  absl::AnyInvocable<std::vector<Launch>()> more;
  // Called once if everything went well, by the thread that drives the lane; null for nothing.
  // What it throws, as `more`, becomes the job's status.
  absl::AnyInvocable<void()> finish;
  // `finish` may block, or take longer than a hand-over of the lane does: then whoever calls it
  // does not drive meanwhile, and jobs that do not wait for this one's end go on.
  bool finish_lasts = false;
  // Called once in any case, last of all; null for nothing. Does not throw.
  absl::AnyInvocable<void()> ended;
};

// A job under way. The lane alone changes it.
// Threads: the getters by any. Owns: its job until it is done.
class JobState {
 public:
  using Callback = absl::AnyInvocable<void(const absl::Status&)>;

  JobState(Job job, uint64_t sequence)
      : name_(job.name), job_(std::move(job)), sequence_(sequence) {}

  const std::string& name() const { return name_; }

  bool done() const { return done_.load(std::memory_order_acquire); }
  // Only once done.
  const absl::Status& status() const { return status_; }
  uint64_t sequence() const { return sequence_; }

 private:
  friend class JobQueue;
  friend class Lane;
  friend class Visit;

  const std::string name_;
  Job job_;
  const uint64_t sequence_;
  // Of the thread that drives.
  size_t launched_ = 0;
  std::vector<Completion> running_;
  bool begun_ = false;  // is in the queue's jobs_
  absl::Status status_;
  // Of a job whose finish lasts: until it is over, status_ and the closure belong to its caller.
  enum class Finishing : uint8_t { kNotYet, kUnderWay, kOver };
  std::atomic<Finishing> finishing_{Finishing::kNotYet};
  std::atomic<bool> done_{false};
  // Guarded by the lane's mutex.
  Callback on_done_;
  absl::Status interrupted_;  // what ended the wait for it
};

// Shared: the caller's work object and the lane may each be the last to let go.
using JobHandle = std::shared_ptr<JobState>;

// The launch of a job that is_from_any. `source` is whose message it receives into `target`.
// Threads: the driver's. Blocks: never. Errors: ResourceExhausted: no message has come;
// Unavailable: and none will, because all other ranks have left; those of Recv.
inline absl::StatusOr<Completion> RecvFromAny(Communicator& communicator, Tensor target,
                                              int32_t tag, std::atomic<int>& source) {
  const absl::StatusOr<std::optional<Rank>> sender = communicator.FindSender(tag);
  if (absl::IsNotFound(sender.status())) return absl::UnavailableError(sender.status().message());
  if (!sender.ok()) return sender.status();
  if (!sender->has_value()) return absl::ResourceExhaustedError("no message has come");
  source.store((*sender)->value());
  return Recv(communicator, target, **sender, tag);
}

}  // namespace pelton::lane

#endif  // PELTON_COMM_LANE_JOB_H_
