// Which trainer a daemon serves, and what the job's other daemons are told of it.
#ifndef PELTON_BACKEND_LINK_TRAINER_SEAT_H_
#define PELTON_BACKEND_LINK_TRAINER_SEAT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <optional>
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
// job's store, without a gap, which the daemons of all ranks read one after the other. So the
// daemons themselves, and their connections, live on. Threads: any. Owns: the record of the
// attached trainer, and the thread that reads of the other trainers' ends.
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
    bool is_heir = false;  // has the place of one that died, among that one's peers
  };

  // Seats the trainer at the other end of `socket`. Blocks: until the trainers of all ranks attach,
  // or `deadline`. Errors: AlreadyExists: names the one that sits there and lives; Aborted: this
  // one died meanwhile; DeadlineExceeded: names the ranks without a trainer.
  // `socket` is shared, because another thread may check whether the trainer lives.
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
  // The seat of `trainer`, which has died, is free for an heir until `until`, of which the daemons
  // and trainers of all ranks are told, so that their deadlines stand still. Blocks: for two calls.
  void Vacate(const Trainer& trainer, absl::Time until);
  // Whether a trainer among its peers has failed or left, with whom an heir could not go on.
  // Blocks: for some calls.
  bool HasLostPeer(const Trainer& trainer);
  // Waits for an heir of `trainer`. Blocks: until an heir has come, the time for one is over, or
  // `gives_up` returns true. Errors: Unavailable: no heir has come, for the reason that the text
  // names.
  absl::Status AwaitHeir(const Trainer& trainer, const std::function<bool()>& gives_up);
  // Notes that the launcher will start no trainer in the place of the last one, so that no rank
  // waits for an heir of it.
  void ExpectNoHeir();
  bool ExpectsHeir(const Trainer& trainer) const;

  // Tells the trainers of all other ranks of this one's failure. The first one of an epoch ends
  // their waits.
  absl::Status Report(const Trainer& trainer, const absl::Status& reason, absl::Time deadline);

  // The trainer that is attached. Errors: FailedPrecondition: another attachment, or none.
  absl::StatusOr<Trainer> Find(uint64_t attachment) const;
  Trainer Current() const;
  bool awaits_heir() const;
  uint64_t attachments() const;
  // Since when nobody has been attached; InfiniteFuture: somebody is.
  absl::Time VacantSince() const;

  // Before the names that an epoch's trainers use at the coordinator.
  static std::string PrefixOf(uint64_t epoch);

 private:
  // A seat, and how far the meetings were when it was taken.
  struct Claim {
    uint64_t attachment = 0;
    std::optional<Trainer> former;  // in whose place it comes
    bool joins_meeting = false;     // that an earlier trainer has begun
    uint64_t meetings = 0;
  };
  // A thread that follows the ends of a trainer's peers. Threads: its own, and the thread that
  // joins it.
  // Owns: the thread.
  struct Watcher {
    std::thread thread;
    std::atomic<bool> is_over{false};
  };
  absl::StatusOr<Claim> TakeSeat(int64_t pid, std::shared_ptr<LinkSocket> socket);
  absl::StatusOr<uint64_t> Meet(const Claim& claim, absl::Time deadline);
  absl::StatusOr<Trainer> Inherit(const Claim& claim, absl::Time deadline);
  // Nobody has the place from now on.
  void Free() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether one of these ends has been told of in an epoch.
  bool HasEnd(uint64_t epoch, std::initializer_list<proto::Order::Kind> kinds, absl::Time deadline);
  // Until when the coordinator may be silent: until then it may come to itself again.
  absl::Time TellPatience() const;
  // What this daemon itself makes of a trainer's end, of its own rank or another.
  void Note(const proto::Order& order);
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
  std::optional<Trainer> former_ ABSL_GUARDED_BY(mutex_);  // whose heir is awaited
  absl::Time heir_until_ ABSL_GUARDED_BY(mutex_);
  uint64_t without_heir_ ABSL_GUARDED_BY(mutex_) = 0;  // the attachment that gets none
  uint64_t inherited_ ABSL_GUARDED_BY(mutex_) = 0;     // the attachment of which the last heir came
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_meeting_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t meetings_ ABSL_GUARDED_BY(mutex_) = 0;  // that have ended
  absl::Status met_ ABSL_GUARDED_BY(mutex_);       // how the last one ended
  std::list<Watcher> watchers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TRAINER_SEAT_H_
