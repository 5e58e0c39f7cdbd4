// One rank's ends of a simulated world: thin handles on the fabric, which holds all state.
#ifndef PELTON_COMM_TRANSPORT_SIM_SIM_COMMUNICATOR_H_
#define PELTON_COMM_TRANSPORT_SIM_SIM_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/sim/sim_fabric.h"
#include "comm/transport/transport.h"

namespace pelton {

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

#endif  // PELTON_COMM_TRANSPORT_SIM_SIM_COMMUNICATOR_H_
