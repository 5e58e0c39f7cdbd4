// Operations that follow one another on a NCCL communicator of their own, as calls of NCCL.
#ifndef PELTON_COMM_TRANSPORT_NCCL_FLIGHT_QUEUE_H_
#define PELTON_COMM_TRANSPORT_NCCL_FLIGHT_QUEUE_H_

#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/event_pool.h"
#include "comm/transport/nccl/flight.h"
#include "comm/transport/nccl/native_communicator.h"
#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/nccl/neighbor_memory.h"

namespace pelton::nccl {

// Where a submission goes. Threads: a value. Owns: nothing.
struct Destination {
  int rank = 0;
  int rank_count = 1;
  int peer = 0;             // of a send or receive, as this communicator numbers ranks
  void* scratch = nullptr;  // a few bytes on the device, for a barrier
  cuda::StreamHandle stream = nullptr;
};

// Puts the operation on the stream. NCCL has no gather, scatter and alltoall in every version: they
// are a group of sends and receives, to itself too; an operation between neighbours is one without.
// A barrier is a sum of one number, so that the streams of the ranks wait for each other, too.
// Returns NCCL's result. Blocks: never.
int Submit(const Flight& flight, const Destination& to, const NcclTable& calls, Handle comm);
// Whether NCCL has anything to do for it.
bool MovesAnything(const Flight& flight);
// What to call it in errors.
absl::string_view CallOf(OperationKind kind);

// What the queues of a communicator share. Threads: that of its communicator. Owns: nothing.
struct QueueResources {
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
// on the queue's own, behind the place where the caller's stream was at Launch.
// Threads: that of its communicator. Owns: its stream, and a share of NCCL's communicator, which
// the thread that aborts it keeps too.
class FlightQueue {
 public:
  // `peer` is what the queue's NCCL communicator calls the other end of a send or receive.
  FlightQueue(const QueueResources& resources, std::shared_ptr<NativeCommunicator> native,
              int peer);
  ~FlightQueue();
  FlightQueue(const FlightQueue&) = delete;
  FlightQueue& operator=(const FlightQueue&) = delete;

  absl::Status CreateStream();
  // Begins to meet the other ranks of the queue.
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

  const QueueResources& resources_;
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

// The queue of one direction to one peer, opened when it is first needed.
// The sender is rank 0 of a NCCL communicator of two and tells the receiver its id over the host.
// Neither waits: the id travels, and NCCL connects, while the first messages queue.
// Threads: that of its communicator. Owns: the queue.
class PairQueue {
 public:
  PairQueue(const QueueResources& resources, const NcclLibrary& library, Communicator& host,
            std::shared_ptr<NativeCommunicator> native, bool sends, Rank peer)
      : library_(library),
        host_(host),
        sends_(sends),
        peer_(peer),
        queue_(resources, std::move(native), /*peer=*/sends ? 1 : 0) {}

  // Takes the next steps; true if anything moved. Errors: what ends the communicator.
  absl::StatusOr<bool> Advance(absl::Time now) {
    if (opening_ != Opening::kBegun) RETURN_IF_ERROR(Open());
    return queue_.Advance(now);
  }
  FlightQueue& queue() { return queue_; }

 private:
  enum class Opening { kNew, kIdReady, kIdUnderWay, kBegun };

  absl::Status Open();

  const NcclLibrary& library_;
  Communicator& host_;
  const bool sends_;
  const Rank peer_;
  UniqueId id_{};
  Completion id_message_;
  Opening opening_ = Opening::kNew;
  FlightQueue queue_;
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_FLIGHT_QUEUE_H_
