// Collectives for a wire that only has sends and receives.
#ifndef PELTON_COMM_COLLECTIVES_PROGRAM_COMMUNICATOR_H_
#define PELTON_COMM_COLLECTIVES_PROGRAM_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/collectives/selection.h"
#include "comm/communicator.h"
#include "core/base/status.h"

namespace pelton {

// Finds out whether the ranks run the same collective.
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

// Programs of shapes that come again.
// Threads: one at a time. Owns: the table and, with those who run them, the programs.
class ProgramCache {
 public:
  explicit ProgramCache(SelectionTable table) : table_(std::move(table)) {}

  // Shared: the cache may forget a program that is still to run.
  using Pointer = std::shared_ptr<const Program>;
  // The program that the table selects. Errors: those of Select.
  absl::StatusOr<Pointer> Get(const ProgramShape& shape) {
    if (const auto found = programs_.find(shape); found != programs_.end()) return found->second;
    ASSIGN_OR_RETURN(const RecipeRegistry::Entry entry, table_.Select(shape));
    if (programs_.size() >= kMaxPrograms) programs_.clear();
    auto program = std::make_shared<const Program>(entry.factory.make(shape));
    programs_.emplace(shape, program);
    return program;
  }

 private:
  // A training step has some tens of shapes.
  static constexpr size_t kMaxPrograms = 256;

  const SelectionTable table_;
  absl::flat_hash_map<ProgramShape, Pointer> programs_;
};

// A communicator that runs every collective as a program over the sends and receives of `wire`, the
// recipe chosen by `table`; sends and receives pass through. All ranks need the same table.
//
// Where the ranks' operations differ, what notices it fails with InvalidArgument and the
// communicator is aborted with that text on all ranks: pieces of the collective are under way, and
// later ones must not meet them. A rank whose part was done before learns it from its next
// operation. Missing() names the ranks whose messages are waited for.
//
// Half of the operations in flight are for the user's sends and receives, half for the programs'.
// So a user's receive that stays unmatched for long holds up nothing else.
std::unique_ptr<Communicator> MakeProgramCommunicator(std::unique_ptr<Communicator> wire,
                                                      SelectionTable table);

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_PROGRAM_COMMUNICATOR_H_
