// What most pipelines are made of: operations that a stage launches together, stages of operations
// or of a step on this rank alone, and stages that run in some rounds and are left out in the
// others.
#ifndef PELTON_CORE_PIPELINE_STANDARD_STAGES_H_
#define PELTON_CORE_PIPELINE_STANDARD_STAGES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/limits.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/pipeline.h"

namespace pelton {

// Operations that a stage has in flight at once: launches what was added, in that order, as there
// is room for it, and says when all of it is done. Threads: its stage's. Owns: its list; not the
// memory of the operations.
class OperationBatch {
 public:
  // Forgets what was added: the next use. Nothing may be in flight.
  void Clear();
  void Add(const Operation& operation) { operations_.push_back(operation); }

  // True once every operation is done. Blocks: never. Errors: those of the launches and of the
  // operations.
  absl::StatusOr<bool> Advance(BucketRun& run);
  // Whether every operation that was added has been launched.
  bool has_launched_all() const { return completions_.size() == operations_.size(); }
  // Of the operations added, so many from the first on were done at the last Advance.
  size_t finished() const { return finished_; }

 private:
  // The runner answers only for its last launches, and two buckets may launch at once.
  static constexpr size_t kMostOpen = limits::kMaxOperationsInFlight / 2;

  absl::Status LaunchMore(BucketRun& run);

  absl::InlinedVector<Operation, 4> operations_;
  absl::InlinedVector<Completion, 4> completions_;
  size_t finished_ = 0;
};

// A stage that launches what `fill` adds, all at once, in the host's memory or a device's. `name`
// is a literal. `next_may_follow`: another bucket's operations may be launched once all of these
// are (Stage::has_launched_all).
using FillBatch = absl::AnyInvocable<void(const BucketRun& run, OperationBatch& batch)>;
std::unique_ptr<Stage> MakeOperationStage(absl::string_view name, FillBatch fill,
                                          bool next_may_follow = true);

// The same with one operation per segment, in place, which is `operation` but for its dtype, count
// and memory.
std::unique_ptr<Stage> MakeInPlaceStage(absl::string_view name, Operation operation,
                                        bool next_may_follow = true);

// Allreduces every segment in place with `op`, all at once.
// Steps: one allreduce per segment. Bytes: those of the communicator's allreduce.
std::unique_ptr<Stage> MakeAllReduceStage(ReduceOp op);

// A stage that is done when `step` is, which works on this rank alone and in the host's memory. It
// is left out where the bucket's flat part has no elements. `kept` is what the stage keeps; `step`
// is given the same with the data. `name` is a literal.
using FlatStep = absl::AnyInvocable<void(const BucketRun& run, absl::Span<const StateBuffer> kept)>;
std::unique_ptr<Stage> MakeLocalStage(absl::string_view name, FlatStep step,
                                      std::vector<StateBuffer> kept = {});

// Rounds count from 1. Whether this one's number is a multiple of `interval`; 0 has none.
bool IsMultiple(const BucketRun& run, uint64_t interval);

enum class WhichRounds : uint8_t { kMultiples, kOthers };

// `stage`, in the rounds that are multiples of `interval` or in the others; its state is kept in
// all of them.
std::unique_ptr<Stage> MakeStageOfRounds(std::unique_ptr<Stage> stage, WhichRounds which,
                                         uint64_t interval);

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_STANDARD_STAGES_H_
