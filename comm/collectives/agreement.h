// Finds out whether the ranks run the same collective.
#ifndef PELTON_COMM_COLLECTIVES_AGREEMENT_H_
#define PELTON_COMM_COLLECTIVES_AGREEMENT_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace pelton {

// Every rank sends the record of its operation to the next rank and compares what comes from the
// one before: if any two ranks differ, some neighbours do. One message of 64 bytes per rank and
// collective, on its way while the data is. Threads: those of the communicator's Launch. Owns: the
// records; the communicator outlives it.
class Agreement {
 public:
  Agreement(Communicator& communicator, int32_t tag) : communicator_(communicator), tag_(tag) {}
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  // Begins for `operation`, the one before being over.
  void Start(const Operation& operation);
  // True once the neighbours' records have been exchanged and agree. Blocks: never. Errors:
  // InvalidArgument: the text of DifferenceOf; those of the communicator.
  absl::StatusOr<bool> Advance();
  bool is_launched() const { return recv_launched_; }
  // The rank before, while its record is waited for.
  std::optional<Rank> Awaited() const;

 private:
  absl::Status LaunchMessages();
  absl::Status Compare() const;
  Rank next() const;
  Rank previous() const;

  Communicator& communicator_;
  const int32_t tag_;
  Operation mine_;
  Operation theirs_;
  bool send_launched_ = true;
  bool recv_launched_ = true;
  Completion send_;
  Completion recv_;
  bool send_done_ = true;
  bool recv_done_ = true;
};

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_AGREEMENT_H_
