// One rank's end of a group of GPUs.
#ifndef PELTON_COMM_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_
#define PELTON_COMM_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/transport/nccl/flight_queue.h"
#include "comm/transport/nccl/native_communicator.h"
#include "comm/transport/operation_check.h"
#include "core/base/sharing.h"
#include "core/pipeline/operation.h"

namespace pelton::nccl {

// What a communicator works with. Threads: a value. Owns: the host's communicator.
struct CommunicatorParts {
  const NcclLibrary& library;
  const cuda::CudaRuntime& runtime;
  // Also of aborts: the thread that calls Abort must not wait for the device to let go, and without
  // NCCL's abort a kernel that hangs for want of a peer would hold the device's streams until the
  // next Progress.
  Endings& endings;
  std::unique_ptr<Communicator> host;  // of the same ranks, for what they say to each other
  int device = 0;
  Generation generation;
  bool agree_first = false;
  std::string kernels_path = {};  // as FindMeanKernel's
};

// Operations run on the device: Launch puts them on a stream and does not wait, and a stream that
// needs their results is put behind them by Follow. A host's stream orders nothing, because the
// memory is ready at Launch.
//
// Beside the data, each operation's record goes to the peers over the host's communicator. From
// these records the ranks find out that their operations differ and that a peer died or aborted,
// and a missed deadline can name the ranks that have not arrived. Unless the ranks agree first, a
// difference is found when NCCL has the operation already, and ends the communicator. Sends and
// receives have no tags.
//
// Operations between neighbours are one group of NCCL's sends and receives, and a kernel that
// combines what has come with this rank's own tensor; weights that travel are 8 bytes beside each
// tensor in the same group. They run among the collectives, in launch order, and so does each end
// of an edge: that is less than EDGE-1 says (collectives/neighbor_communicator.h). Both ends of an
// edge have to launch what they have in common, collectives of all included, in the same order; a
// tag, a shape, a dtype or a bucket that differs is an error at both ends, and with it an order
// that differs. Unless the ranks agree first, that ends the communicator, and a target of that
// operation may have been written; else its other edges are served.
//
// After an abort, the next call waits until NCCL has let the operations' memory go (OWN-1).
// Threads and contract: as Communicator. Owns: its streams and events, NCCL's communicators.
class NcclCommunicator final : public Communicator, public NativeNeighbors {
 public:
  using OnClose = std::function<void(NcclCommunicator*)>;

  NcclCommunicator(CommunicatorParts parts, OnClose on_close);
  ~NcclCommunicator() override;

  // Meets the other ranks; collective. Blocks: until `deadline`. Errors: DeadlineExceeded; NCCL's
  // and the device's; what has ended the host's communicator, as when a peer's Connect fails;
  // InterruptedError.
  absl::Status Connect(const UniqueId& id, absl::Time deadline);

  Rank rank() const override { return host_->rank(); }
  WorldSize world_size() const override { return host_->world_size(); }
  CommunicatorId id() const override { return host_->id(); }
  int spins() const override { return host_->spins(); }

  // Errors: also Unimplemented: this NCCL cannot; operations on the memory work all the same.
  absl::Status Register(const Region& region) override;
  void Deregister(RegionId region) override;

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  State Follow(Completion completion, Stream& stream) override;
  void Park(absl::Time until) override;
  void Wake() override { host_->Wake(); }
  void Abort(const absl::Status& reason) override;
  std::vector<Rank> Missing() const override { return host_->Missing(); }

 private:
  absl::Status Refuse(absl::string_view what) const;
  absl::Status AwaitNative();
  absl::Status CheckStream(const Stream& stream) const;
  absl::StatusOr<Flight> Prepare(const Operation& operation, const Stream& stream);
  absl::Status CheckAndResolve(const Operation& operation, Flight& flight) const;
  absl::Status FindKernel(Flight& flight);
  void FillForNeighbors(Flight& flight) const;
  void Number(Operation& operation);
  // Of an operation in flight.
  Flight& FlightOf(uint64_t ticket) { return flights_[completions_.PlaceOf(ticket)]; }
  // Ends what the queues are through with.
  void Settle();
  absl::StatusOr<FlightQueue*> QueueOf(const Operation& operation);
  std::shared_ptr<NativeCommunicator> MakeNative(absl::string_view what);
  absl::StatusOr<bool> AdvanceQueues();
  absl::StatusOr<bool> AdvanceEach(absl::Time now);
  bool EndIfAborted();
  // Of all natives, at once: one that comes first here may be the last on a peer. Blocks: never.
  void BeginAborts();
  // Begins them and waits. Blocks: until NCCL and the kernels have let the operations' memory go,
  // for some seconds at most.
  void AbortAll();
  void FailQueues(const absl::Status& reason);
  // Aborts, naming the operation that cannot go on; gives back what all later calls do.
  absl::Status EndBy(const Operation& operation, const absl::Status& reason);
  bool Busy() const;

  const NcclLibrary& library_;
  const cuda::CudaRuntime& runtime_;
  Endings& endings_;
  std::unique_ptr<Communicator> host_;  // until the destructor
  const Generation generation_;
  const OnClose on_close_;
  EventPool events_;
  PostExchange posts_;
  QueueResources resources_;
  CompletionTable completions_;
  std::array<Flight, CompletionTable::kPlaces> flights_;  // by place
  std::vector<Flight*> in_flight_;                        // in launch order
  uint64_t launched_collectives_ = 0;
  std::unique_ptr<FlightQueue> collectives_;
  using Direction = std::pair<bool, int32_t>;  // sends, peer
  std::map<Direction, std::unique_ptr<PairQueue>> pairs_;
  std::map<Direction, uint64_t> launched_pairs_;
  std::multimap<RegionId, void*> registrations_;
  const std::string kernels_path_;
  MeanKernel mean_kernel_ = nullptr;  // from the first average on
  absl::Time next_host_look_ = absl::InfinitePast();
  absl::Time moved_at_ = absl::InfinitePast();  // something was submitted, agreed on, or done
  bool has_drained_ = false;                    // the flights have learned of the end
  EndReason ended_;
  // Shared: the communicator may be destroyed while a thread that aborts is at it.
  SharedList<std::shared_ptr<NativeCommunicator>> natives_;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_
