// The stand-in's communicators, and the world of ranks that are threads of this process.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_WORLD_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_WORLD_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/stand_in/arrival.h"
#include "comm/transport/nccl/stand_in/streams.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/sync.h"

namespace pelton::stand_in {

// Where the ranks of one id meet that are threads, over the sim transport. Threads: any. Owns: the
// fabric.
class World {
 public:
  // That of `id`, shared by the ranks that have it; gone with the last.
  static std::shared_ptr<World> Of(const std::string& id, int rank_count);

  explicit World(int rank_count);
  // Says that `rank` is here.
  void Arrive(int rank);
  // That rank's communicator, once all have arrived; null before. Once.
  std::unique_ptr<Communicator> Take(int rank);
  // See Arrival.
  void Leave();
  void AwaitLeft();

 private:
  SimFabric fabric_;
  Mutex mutex_;
  std::vector<bool> arrived_;  // written under the lock; the size never changes
  size_t missing_ ABSL_GUARDED_BY(mutex_);
  size_t staying_ ABSL_GUARDED_BY(mutex_);
  CondVar left_;
  std::vector<std::unique_ptr<Communicator>> communicators_ ABSL_GUARDED_BY(mutex_);
};

// A rank that is a thread. Threads: as Arrival. Owns: a share of the world, as all its ranks do.
class ThreadArrival final : public Arrival {
 public:
  ThreadArrival(std::shared_ptr<World> world, int rank);
  absl::StatusOr<std::unique_ptr<Communicator>> Take() override { return world_->Take(rank_); }
  void Leave() override { world_->Leave(); }
  void AwaitLeft() override { world_->AwaitLeft(); }

 private:
  const std::shared_ptr<World> world_;
  const int rank_;
};

}  // namespace pelton::stand_in

// What ncclComm_t points to. Threads: those of NCCL's: one call at a time; ncclCommAbort waits for
// the work on streams. Owns: its rank's place in the world.
struct ncclComm {
 public:
  ncclComm(std::unique_ptr<pelton::stand_in::Arrival> arrival, int rank);
  ~ncclComm();

  // NCCL's result: in progress while ranks are missing or it is made to look busy.
  int Poll();
  // Why Poll has failed. Valid while the communicator is.
  const char* last_error() const { return last_error_.c_str(); }
  // Queues operations that run together, as a group does. The first is put on the stream only when
  // Poll has been called often enough: NCCL connects then.
  int Enqueue(std::vector<pelton::Operation> operations, CUstream_st* stream);
  int Finalize();
  // Ends what runs and waits for it.
  void Abort();
  // Blocks: until every rank has begun to end its own.
  void AwaitOthersEnd();
  // Counted while they are held; the communicator's end takes back what is left.
  void Register() { CountRegistrations(1); }
  void Deregister() { CountRegistrations(-1); }

 private:
  void Push(std::vector<pelton::Operation> operations, CUstream_st* stream);
  void Run(const std::vector<pelton::Operation>& operations);
  bool Await(pelton::Completion completion);
  bool Succeeded(const absl::Status& status);
  void HangUntilAborted();
  void CountRegistrations(int change);

  const std::unique_ptr<pelton::stand_in::Arrival> arrival_;
  const int rank_;
  std::string last_error_ = "said by the stand-in";
  std::unique_ptr<pelton::Communicator> communicator_;
  const std::shared_ptr<pelton::stand_in::Marks> order_;  // of what was put on streams
  int busy_polls_ = 0;
  int registrations_ = 0;
  bool has_connected_ = false;
  std::function<void()> when_connected_;
  pelton::Mutex mutex_;
  pelton::CondVar changed_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  int remote_error_ ABSL_GUARDED_BY(mutex_) = 0;
};

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_WORLD_H_
