// A transport that wraps another one and injects faults, so that failure is a unit test.
#ifndef PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_
#define PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "core/base/split_mix.h"

namespace pelton {

// Which faults a wrapped transport shows, and when: a pure function of the script and its seed.
// Counts are of one communicator on one rank, from 1; 0 means never. Probabilities are in [0, 1].
// Threads: a value. Owns: nothing.
struct FaultScript {
  uint64_t seed = 0;
  uint64_t fail_launch = 0;  // this Launch is refused, as if memory had run out
  uint64_t kill_launch = 0;  // at this Launch the connection breaks: all later ones fail, too
  double skip_progress = 0;  // a Progress does nothing
  double drop_wake = 0;      // a Wake is lost
};

// Draws the faults of one communicator. Threads: any; of draws that come at once each gets a number
// of its own. Owns: how many there were.
class FaultDice {
 public:
  // `stream` makes the draws of different communicators and ranks independent.
  FaultDice(const FaultScript& script, uint64_t stream)
      : script_(script), seed_(script.seed * 1000003 + stream) {}

  // What the next Launch meets: OK, ResourceExhausted (fail_launch) or Unavailable (kill_launch).
  absl::Status OnLaunch();
  bool SkipsProgress() { return Draws(script_.skip_progress); }
  bool DropsWake() { return Draws(script_.drop_wake); }

 private:
  bool Draws(double probability) {
    if (probability <= 0) return false;
    const uint64_t number = SplitMix(seed_, draws_.fetch_add(1, std::memory_order_relaxed));
    return static_cast<double>(number >> 11) * 0x1p-53 < probability;
  }

  const FaultScript script_;
  const uint64_t seed_;
  std::atomic<uint64_t> draws_{0};
  std::atomic<uint64_t> launches_{0};
};

// Threads: as Communicator. Owns: the communicator it wraps.
class FaultCommunicator final : public ForwardingCommunicator {
 public:
  FaultCommunicator(std::unique_ptr<Communicator> wrapped, const FaultScript& script,
                    uint64_t stream)
      : ForwardingCommunicator(std::move(wrapped)), dice_(script, stream) {}

  // Errors: also those of the script. A broken connection aborts the wrapped communicator, so that
  // the peers notice as they would.
  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  void Wake() override;

 private:
  FaultDice dice_;
};

// Threads: as Transport. Owns: the transport it wraps.
class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> wrapped, const FaultScript& script)
      : wrapped_(std::move(wrapped)), script_(script) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override;
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }
  void SayGoodbye() override { wrapped_->SayGoodbye(); }

 private:
  const std::unique_ptr<Transport> wrapped_;
  const FaultScript script_;
};

// `wrapped` with the same faults on top.
std::unique_ptr<Communicator> WithFaults(std::unique_ptr<Communicator> wrapped,
                                         const FaultScript& script);

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_FAULT_FAULT_TRANSPORT_H_
