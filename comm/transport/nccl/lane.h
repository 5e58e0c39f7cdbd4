// Operations that follow one another on a NCCL communicator of their own.
#ifndef PELTON_COMM_TRANSPORT_NCCL_LANE_H_
#define PELTON_COMM_TRANSPORT_NCCL_LANE_H_

#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/event_pool.h"
#include "comm/transport/nccl/flight.h"
#include "comm/transport/nccl/native_communicator.h"
#include "comm/transport/nccl/neighbor_memory.h"
#include "comm/transport/nccl/submission.h"

namespace pelton::nccl {

// What the lanes of a communicator share. Threads: that of its communicator. Owns: nothing.
struct LaneResources {
  const cuda::CudaRuntime& runtime;
  EventPool& events;
  PostExchange& posts;
  int device = 0;
  void* scratch = nullptr;
  bool agree_first = false;  // nothing goes to the device before all ranks' posts agree
};

// Carries flights to the device in launch order and back: posted, agreed, submitted, finished. NCCL
// runs what is on one communicator strictly in order; so collectives have one, and so has each
// direction to each peer, and none waits for another (core/pipeline/operation.h).
//
// A flight that brings a stream runs on it if it can go at once, else, like those that bring none,
// on the lane's own, behind the place where the caller's stream was at Launch.
// Threads: that of its communicator. Owns: its stream, and a share of NCCL's communicator, which
// the thread that aborts it keeps too.
class Lane {
 public:
  // `peer` is what the lane's NCCL communicator calls the other end of a send or receive.
  Lane(const LaneResources& resources, std::shared_ptr<NativeCommunicator> native, int peer);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  absl::Status CreateStream();
  // Begins to meet the other ranks of the lane.
  absl::Status Begin(const UniqueId& id, int rank, int rank_count);
  // Whether NCCL takes operations. Errors: NCCL's.
  absl::StatusOr<bool> IsReady();

  // Takes `flight`, which stays where it is until it is done. Errors: the device's.
  absl::Status Add(Flight& flight);
  // Takes the next steps; true if anything moved. Errors: what ends the communicator.
  absl::StatusOr<bool> Advance(absl::Time now);
  // Ends all flights with `reason`; NCCL's communicator has been aborted.
  void Fail(const absl::Status& reason);

  NativeCommunicator& native() const { return *native_; }
  // Waits until the device is through with what neighbour operations have put there, so that it
  // reads and writes their memory no more, though NCCL's communicator was aborted: their copies and
  // kernels are not NCCL's. Blocks: until then, or `deadline`.
  void AwaitKernels(absl::Time deadline);
  // Whether something is on the device or in NCCL's hands: nobody will tell us of its end.
  bool needs_polling() const { return busy_ || submitted_ > 0; }

 private:
  bool goes_at_once() const;
  absl::StatusOr<bool> AdvancePosts();
  absl::StatusOr<bool> AdvanceNative(absl::Time now);
  absl::StatusOr<bool> SubmitWaiting();
  absl::Status SubmitOne(Flight& flight);
  absl::Status MarkEnd(Flight& flight);
  NeighborMemory& neighbor_memory();
  absl::StatusOr<bool> CompleteFinished();
  void Finish(Flight& flight, const absl::Status& status);

  const LaneResources& resources_;
  const std::shared_ptr<NativeCommunicator> native_;
  Destination destination_;
  cuda::StreamHandle own_stream_ = nullptr;
  std::unique_ptr<NeighborMemory> neighbor_memory_;  // from the first average on
  std::deque<Flight*> flights_;                      // in launch order
  size_t submitted_ = 0;                             // how many of them NCCL has
  bool has_begun_ = false;
  bool busy_ = false;  // NCCL is at it in the background and takes no call
  absl::Time next_error_poll_ = absl::InfinitePast();
};

// The lane of one direction to one peer, opened when it is first needed.
// The sender is rank 0 of a NCCL communicator of two and tells the receiver its id over the host.
// Neither waits: the id travels, and NCCL connects, while the first messages queue.
// Threads: that of its communicator. Owns: the lane.
class PairLane {
 public:
  PairLane(const LaneResources& resources, const NcclLibrary& library, Communicator& host,
           std::shared_ptr<NativeCommunicator> native, bool sends, Rank peer)
      : library_(library),
        posts_(resources.posts),
        host_(host),
        sends_(sends),
        peer_(peer),
        lane_(resources, std::move(native), /*peer=*/sends ? 1 : 0) {}

  // Takes the next steps; true if anything moved. Errors: what ends the communicator.
  absl::StatusOr<bool> Advance(absl::Time now) {
    if (opening_ != Opening::kBegun) RETURN_IF_ERROR(Open());
    return lane_.Advance(now);
  }
  Lane& lane() { return lane_; }

 private:
  enum class Opening { kNew, kIdUnderWay, kBegun };

  absl::Status Open();
  absl::StatusOr<Completion> ExchangeId();

  const NcclLibrary& library_;
  PostExchange& posts_;
  Communicator& host_;
  const bool sends_;
  const Rank peer_;
  UniqueId id_{};
  Completion id_message_;
  Opening opening_ = Opening::kNew;
  Lane lane_;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_LANE_H_
