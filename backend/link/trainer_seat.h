// Which trainer a daemon serves, and what the job's other daemons are told of it.
#ifndef PELTON_BACKEND_LINK_TRAINER_SEAT_H_
#define PELTON_BACKEND_LINK_TRAINER_SEAT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/link/link_socket.h"
#include "core/base/sync.h"
#include "proto/link.pb.h"

namespace pelton {

// One trainer at a time. The trainers of a job attach together: that gives them a number, the
// epoch, and what they keep at the coordinator is apart from what an earlier set of trainers has
// left there. The ends of an epoch's trainers, failures and goodbyes, are numbered keys of the
// job's store, which the daemons of all ranks read one after the other. So the daemons themselves,
// and their connections, live on. Threads: any. Owns: who is attached, and the thread that reads of
// the others' ends.
class TrainerSeat {
 public:
  // `backend` is borrowed, and outlives the seat.
  explicit TrainerSeat(Backend* backend);
  ~TrainerSeat();
  TrainerSeat(const TrainerSeat&) = delete;
  TrainerSeat& operator=(const TrainerSeat&) = delete;

  struct Trainer {
    uint64_t attachment = 0;  // 0: none
    uint64_t epoch = 0;
    int64_t pid = 0;
  };

  // Seats the trainer at the other end of `socket`. Blocks: until the trainers of all ranks attach,
  // or `deadline`. Errors: AlreadyExists: names the one that sits there and lives; Aborted: this
  // one died meanwhile; DeadlineExceeded: names the ranks without a trainer.
  // `socket` is shared: who looks whether the trainer lives may be another thread.
  absl::StatusOr<Trainer> Attach(int64_t pid, std::shared_ptr<LinkSocket> socket,
                                 absl::Time deadline);
  // Has the trainer told of the others' ends from now on; to be called once it has been welcomed.
  void Watch(const Trainer& trainer);
  // Tells the trainers of all other ranks that this one has gone. OK: in good order, which ends
  // only what needs it, after some time; else why its going is a failure. Blocks: for two calls.
  void TellOfEnd(const Trainer& trainer, const absl::Status& failure);
  // Has `trainer` itself told of the job's end by `reason`. Blocks: for some time, where it is
  // stopped.
  void TellOwn(const Trainer& trainer, const absl::Status& reason);
  // The seat is free again.
  void Detach(const Trainer& trainer);

  // Tells the trainers of all other ranks of a failure. The first one of an epoch ends their waits.
  absl::Status Report(const Trainer& trainer, Rank culprit, const absl::Status& reason,
                      absl::Time deadline);

  // Who sits there. Errors: FailedPrecondition: another attachment, or none.
  absl::StatusOr<Trainer> Find(uint64_t attachment) const;
  Trainer Current() const;
  uint64_t attachments() const;
  // Since when nobody has been attached; InfiniteFuture: somebody is.
  absl::Time VacantSince() const;

  // Before the names that an epoch's trainers use at the coordinator.
  static std::string PrefixOf(uint64_t epoch);

 private:
  // A seat, and how far the meetings were when it was taken.
  struct Claim {
    uint64_t attachment = 0;
    bool joins_meeting = false;  // that an earlier trainer has begun
    uint64_t meetings = 0;
  };
  absl::StatusOr<Claim> TakeSeat(int64_t pid, std::shared_ptr<LinkSocket> socket);
  absl::StatusOr<uint64_t> Meet(const Claim& claim, absl::Time deadline);
  // Tells the daemons of all ranks that this rank's trainer goes, and how.
  absl::Status Publish(const Trainer& trainer, const proto::Order& order, absl::Time deadline);
  void FollowEnds(Trainer trainer, std::shared_ptr<LinkSocket> socket);
  absl::StatusOr<std::string> AwaitEnd(const Trainer& trainer, int64_t number);
  proto::Order OrderOfLostJob(const absl::Status& found);
  bool IsSeated(const Trainer& trainer) const;

  Backend& backend_;

  mutable Mutex mutex_;
  CondVar changed_;
  Trainer seated_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<LinkSocket> socket_ ABSL_GUARDED_BY(mutex_);  // of the one that is seated
  uint64_t attachments_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time vacant_since_ ABSL_GUARDED_BY(mutex_);
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_meeting_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;  // that have ended
  absl::Status met_ ABSL_GUARDED_BY(mutex_);       // how the last one ended
  std::thread watcher_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TRAINER_SEAT_H_
