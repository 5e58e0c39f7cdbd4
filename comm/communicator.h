// What algorithms and users see of communication: a group of ranks and the operations on it.
#ifndef PELTON_COMM_COMMUNICATOR_H_
#define PELTON_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/memory/device_queue.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton {

// The memory of an operation that another process holds.
// An allreduce's tensor, which its owner copies into a region of this process piece by piece, and
// out of it again: so a few pieces that stay in the cache carry a large tensor.
// Threads: the communicator's. Owns: as its implementation says.
class Pieces {
 public:
  virtual ~Pieces() = default;

  // Where the source of piece `index` lies, in a registered region; nothing while the piece is not
  // ready. The thread that drives the communicator is woken once it is. Pieces are taken in their
  // order.
  virtual std::optional<Location> Take(uint64_t index) = 0;
  // The result of piece `index` lies where its source was. No rank of the host reaches there any
  // more.
  virtual void GiveBack(uint64_t index) = 0;
};

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
};

// A communicator that hands everything to another one: a base for those that change a little.
// Threads: as Communicator. Owns: the communicator it wraps.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> wrapped)
      : wrapped_(std::move(wrapped)) {}

  Rank rank() const override { return wrapped_->rank(); }
  WorldSize world_size() const override { return wrapped_->world_size(); }
  CommunicatorId id() const override { return wrapped_->id(); }
  int spins() const override { return wrapped_->spins(); }
  int yields() const override { return wrapped_->yields(); }
  absl::Status Register(const Region& region) override { return wrapped_->Register(region); }
  void Deregister(RegionId region) override { wrapped_->Deregister(region); }
  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag) override {
    return wrapped_->FindSender(tag);
  }

  // LaunchInPieces is not forwarded: a subclass that sees every launch must see those, too.
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    return wrapped_->Launch(operation, stream);
  }
  bool Progress() override { return wrapped_->Progress(); }
  State Query(Completion completion) override { return wrapped_->Query(completion); }
  // Follow is not forwarded, because the base class makes it of Query: a subclass that gives out
  // tickets of its own overrides Query, and the wrapped communicator knows no such tickets.
  void Park(absl::Time until) override { wrapped_->Park(until); }
  void Wake() override { wrapped_->Wake(); }
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }
  std::vector<Rank> Missing() const override { return wrapped_->Missing(); }

 protected:
  Communicator& wrapped() { return *wrapped_; }
  const Communicator& wrapped() const { return *wrapped_; }

 private:
  const std::unique_ptr<Communicator> wrapped_;
};

}  // namespace pelton

#endif  // PELTON_COMM_COMMUNICATOR_H_
