// What algorithms and users see of communication: a group of ranks and the operations on it.
#ifndef PELTON_COMM_COMMUNICATOR_H_
#define PELTON_COMM_COMMUNICATOR_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/pieces.h"
#include "core/base/ids.h"
#include "core/memory/region.h"
#include "core/memory/stream.h"
#include "core/pipeline/operation_runner.h"

namespace pelton {

// One rank's end of a group's communication for one traffic class. Each traffic class (a model's
// plan, user calls, control) has a communicator of its own, so that their orders are independent
// (ORDER-1). Threads: as OperationRunner; the getters by any. Owns: its connections; neither the
// regions nor the tensors.
class Communicator : public OperationRunner {
 public:
  virtual Rank rank() const = 0;
  virtual WorldSize world_size() const = 0;
  virtual CommunicatorId id() const = 0;
  // How often a wait may look for news before it gives its core away: 0 where ranks outnumber
  // cores, so that the rank it waits for needs that core.
  virtual int spins() const { return 50; }
  // How often it may then give its core away and look again before it parks: 0 where the process
  // that it waits for wakes it at once.
  virtual int yields() const { return 200; }

  // Makes a region known to the peers before its first use in an operation; needed for memory that
  // peers are to reach directly. Not collective. The region must stay alive until Deregister.
  // Blocks: never for long.
  virtual absl::Status Register(const Region& region) = 0;
  virtual void Deregister(RegionId region) = 0;

  // The size of the pieces that LaunchInPieces takes, of which only the last may be smaller. 0: it
  // takes none. Units: bytes.
  virtual uint64_t piece_bytes() const { return 0; }
  // As Launch, of an allreduce of more than piece_bytes() whose locations do not count, over the
  // memory that `pieces` bring, which outlives the operation. The peers may launch theirs either
  // way. Errors: as Launch; Unimplemented: piece_bytes() is 0.
  virtual absl::StatusOr<Completion> LaunchInPieces(const Operation& operation, Pieces& pieces) {
    return absl::UnimplementedError("this transport takes no operation in pieces");
  }

  // A rank whose next message with `tag` is here and has no receive yet, so that one from it begins
  // at once; none: no such message has come. Of several ranks each has its turn. One thread at a
  // time, as Progress, which has to be called in between. Blocks: never. Errors: Unimplemented:
  // this transport does not know; NotFound: all other ranks have left; the reason of an Abort.
  virtual absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) {
    return absl::UnimplementedError(
        "receiving from any rank is not offered by this transport; name the source");
  }

  // Makes later work on a device's `stream` wait for `completion`, and not the host: for transports
  // that run operations on the device. Work that was put on the stream before Launch comes before
  // the operation in any case. Blocks: until the operation is on its way to the device, which it is
  // after Launch but while the wire is being connected, or `deadline`. Errors: InvalidArgument:
  // this transport's operations need the host (Await them), or the stream is not the device's;
  // those of the operation; DeadlineExceeded.
  virtual absl::Status WaitOnStream(Completion completion, Stream& stream, absl::Time deadline) {
    return absl::InvalidArgumentError("stream: operations of this transport run on the host");
  }
};

}  // namespace pelton

#endif  // PELTON_COMM_COMMUNICATOR_H_
