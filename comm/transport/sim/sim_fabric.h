// A whole world in one process: simulated ranks, wires and faults; and one rank's ends of it, thin
// handles on the fabric, which holds all state.
#ifndef PELTON_COMM_TRANSPORT_SIM_SIM_FABRIC_H_
#define PELTON_COMM_TRANSPORT_SIM_SIM_FABRIC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/sim/network.h"
#include "comm/transport/sim/sim_group.h"
#include "comm/transport/transport.h"
#include "core/actor/sim_executor.h"
#include "core/actor/waker.h"
#include "core/base/clock.h"
#include "core/base/sync.h"

namespace pelton {

struct SimOptions {
  LinkModel link;     // of all links; see SetLink
  uint64_t seed = 0;  // of the jitter
  // Virtual for a simulation in one thread, which then lets the events happen through RunDue and
  // opens communicators with OpenAll: nothing blocks. Outlives the fabric.
  const Clock* clock = &Clock::Real();
  // Collectives of other kinds run as programs.
  KindSet native_kinds = kSimKinds;
};

// The wires between the ranks of a simulated world. In real time each rank has a thread of its own
// and its Progress lets due events happen; in virtual time hundreds of ranks share one thread.
// Threads: any, but with a virtual clock the simulation's alone. Owns: the state of every
// communicator; it outlives the transports and communicators, and they the operations.
class SimFabric final : public EventSource {
 public:
  explicit SimFabric(WorldSize world_size, const SimOptions& options = {});
  ~SimFabric() override;
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  WorldSize world_size() const { return world_size_; }

  // One rank's transport; all of them, by rank.
  std::unique_ptr<Transport> MakeTransport(Rank rank);
  std::vector<std::unique_ptr<Transport>> MakeTransports();

  // Opens the group's communicator on all of its ranks at once; by rank in the group. Blocks:
  // never. Errors: InvalidArgument: a member is not in the world, or is there twice.
  absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> OpenAll(CommunicatorId id,
                                                                     const Group& group);

  // EventSource: a SimExecutor that is given it lets its events happen.
  absl::Time NextEventTime() override;
  void RunDue(absl::Time now) override;

  // Faults. Ranks are those of the world.
  // All of its operations fail, its peers learn "rank N died" after the latency of the link.
  void KillRank(Rank rank);
  // What it launches before `until` is visible to its peers at `until` only.
  void Stall(Rank rank, absl::Time until);
  // Adds to the latency of the link's later transfers.
  void Delay(Link link, absl::Duration extra);
  void SetLink(Link link, const LinkModel& model);

  // Units: bytes that completed or pending operations put on the link (see outcome.h).
  uint64_t BytesSent(Link link);
  uint64_t TotalBytesSent();

 private:
  friend class SimCommunicator;
  friend class SimTransport;

  // The ranks that have come to open a communicator; gone when the last one has left.
  struct Meeting {
    std::vector<bool> arrived;
    size_t left_to_arrive = 0;
    size_t left_to_leave = 0;
    SimGroup* opened = nullptr;
  };
  struct MeetingKey {
    uint32_t id;
    uint32_t generation;
    std::vector<Rank> members;
    friend auto operator<=>(const MeetingKey&, const MeetingKey&) = default;
  };

  // What SimTransport and SimCommunicator do, with `rank` in the world and in the group.
  absl::StatusOr<std::unique_ptr<Communicator>> Open(Rank rank, CommunicatorId id,
                                                     const Group& group, absl::Time deadline);
  void AbortAll(Rank rank, const absl::Status& reason);
  absl::StatusOr<Completion> Launch(SimGroup& group, Rank rank, const Operation& operation);
  bool Progress(SimGroup& group, Rank rank);
  OperationRunner::State Query(SimGroup& group, Rank rank, Completion completion);
  void Park(SimGroup& group, Rank rank, absl::Time until);
  void Wake(SimGroup& group, Rank rank);
  void Abort(SimGroup& group, Rank rank, const absl::Status& reason);
  std::vector<Rank> Missing(SimGroup& group, Rank rank);
  absl::StatusOr<std::optional<Rank>> FindSender(SimGroup& group, Rank rank, int32_t tag);
  void Close(SimGroup& group, Rank rank);

  absl::Status CheckAlive(const Group& group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WaitForOthers(const Group& group, Meeting& meeting, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SimGroup* AddGroup(CommunicatorId id, const Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunDueLocked(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool is_virtual() const { return &clock_ != &Clock::Real(); }

  const WorldSize world_size_;
  const Clock& clock_;
  const KindSet native_kinds_;
  Mutex mutex_;
  CondVar opened_;
  Network network_ ABSL_GUARDED_BY(mutex_);
  EventQueue events_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<SimGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  std::map<MeetingKey, Meeting> meetings_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Time> stalled_until_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::vector<bool> dead_ ABSL_GUARDED_BY(mutex_);                 // by rank
  std::vector<Waker*> parked_ ABSL_GUARDED_BY(mutex_);
  absl::Time parked_next_event_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// Threads: as Communicator. Owns: its rank's place in the group, which it gives up when destroyed.
class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(SimFabric& fabric, SimGroup& group, Rank rank)
      : fabric_(fabric), group_(group), rank_(rank), world_size_(group.group().size()) {}
  ~SimCommunicator() override { fabric_.Close(group_, rank_); }

  Rank rank() const override { return rank_; }
  WorldSize world_size() const override { return world_size_; }
  CommunicatorId id() const override { return group_.id(); }

  // Peers share the address space: there is nothing to make known.
  absl::Status Register(const Region& region) override { return absl::OkStatus(); }
  void Deregister(RegionId region) override {}

  // Errors: also InvalidArgument: a stream that is not the host's.
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    if (stream.device() != DeviceKind::kHost) {
      return absl::InvalidArgumentError("stream: the sim transport runs on the host only");
    }
    return fabric_.Launch(group_, rank_, operation);
  }
  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) override {
    return fabric_.FindSender(group_, rank_, tag);
  }
  bool Progress() override { return fabric_.Progress(group_, rank_); }
  State Query(Completion completion) override { return fabric_.Query(group_, rank_, completion); }
  void Park(absl::Time until) override { fabric_.Park(group_, rank_, until); }
  void Wake() override { fabric_.Wake(group_, rank_); }
  void Abort(const absl::Status& reason) override { fabric_.Abort(group_, rank_, reason); }
  std::vector<Rank> Missing() const override { return fabric_.Missing(group_, rank_); }

 private:
  SimFabric& fabric_;
  SimGroup& group_;
  const Rank rank_;
  const WorldSize world_size_;
};

// Threads: as Transport. Owns: nothing; the fabric outlives it.
class SimTransport final : public Transport {
 public:
  SimTransport(SimFabric& fabric, Rank rank) : fabric_(fabric), rank_(rank) {}

  // Errors: also Unavailable: a member died. In virtual time it does not wait: see OpenAll.
  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    return fabric_.Open(rank_, id, group, deadline);
  }
  void Abort(const absl::Status& reason) override { fabric_.AbortAll(rank_, reason); }

 private:
  SimFabric& fabric_;
  const Rank rank_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_SIM_SIM_FABRIC_H_
