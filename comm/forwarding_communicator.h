// A communicator that hands everything to another one: a base for those that change a little.
#ifndef PELTON_COMM_FORWARDING_COMMUNICATOR_H_
#define PELTON_COMM_FORWARDING_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"

namespace pelton {

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
  absl::Status WaitOnStream(Completion completion, Stream& stream, absl::Time deadline) override {
    return wrapped_->WaitOnStream(completion, stream, deadline);
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

#endif  // PELTON_COMM_FORWARDING_COMMUNICATOR_H_
