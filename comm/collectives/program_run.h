// A program under way on one rank, over a runner's sends and receives.
#ifndef PELTON_COMM_COLLECTIVES_PROGRAM_RUN_H_
#define PELTON_COMM_COLLECTIVES_PROGRAM_RUN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/collectives/program.h"
#include "comm/reduction/linear_combination.h"
#include "comm/tags.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"

namespace pelton {

// What the pieces of a program stand for. `peers[i]` is the runner's rank that is number i of the
// program's group, so that a program can run among some of the runner's ranks; none: the runner's
// own numbers. Tags from `tag` to `tag` + kMaxProgramStrands - 1 are the run's: no other sends with
// them between these ranks. Threads: a value. Owns: nothing.
struct ProgramBinding {
  std::byte* source = nullptr;
  std::byte* target = nullptr;
  DType dtype = DType::kFloat32;
  ReduceOp reduce_op = ReduceOp::kSum;
  // What AVG divides by: the ranks that the sum is over, which may be more than the program's. With
  // 0 it does not divide, for programs whose sums go on being summed.
  int32_t divisor = 1;
  absl::Span<const Rank> peers = {};
  int32_t tag = 0;
  // What kCombine multiplies by, and what else the program has in Buffer::kFactors. Bound for a
  // run, so that programs may be kept by shape.
  absl::Span<double> factors = {};
  // A message whose two ends differ fails alone: Advance gives the first such difference once no
  // transfer is in flight any more, and the run may be started anew. Else any error ends the run.
  bool outlives_differences = false;
  // Travel with every message, so that ranks that run different collectives notice.
  OperationKind kind = OperationKind::kAllReduce;
  bool sends_weights = false;  // of neighbour operations: see WeightTable::Form
  BucketId bucket = kNoBucket;
  int32_t shape_mark = 0;  // of neighbour operations: see comm/tags.h
};

inline constexpr int32_t kMaxProgramStrands = 64;
inline constexpr int32_t kFirstProgramTag = kFirstCollectiveTag;
// Messages that a run has in flight at most; leaves as many to others of the same runner.
inline constexpr size_t kMaxProgramTransfers = 128;

// Runs one program after another; keeps its scratch memory for the next.
// Threads: those of the runner's Launch. Owns: its scratch; the runner outlives it.
class ProgramRun {
 public:
  explicit ProgramRun(OperationRunner& runner) : runner_(runner) {}
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  // Begins, the program before being done. `program` and the binding's memory stay until this one
  // is. Blocks: never. Errors: ResourceExhausted: no scratch memory; that of an earlier Advance.
  absl::Status Start(const Program& program, const ProgramBinding& binding);
  // Does a bounded amount of work, without calling the runner's Progress; true once done. Launches
  // that the runner refuses with ResourceExhausted are tried again. Blocks: never. Errors: those of
  // the transfers; the run is then over, but the runner may still hold its memory until it is
  // aborted (OWN-1).
  absl::StatusOr<bool> Advance();
  // Whether transfers are in flight, as after some errors: the runner has their memory (OWN-1).
  bool holds_memory() const { return in_flight_count_ > 0; }
  // Whether nothing is left to launch.
  bool is_issued() const { return next_wave_ == waves_; }
  // Whether the last Advance moved anything.
  bool moved() const { return moved_; }
  uint64_t sent_bytes() const { return sent_bytes_; }  // of all programs so far
  // The runner's ranks whose part in a message this rank waits for, each once.
  std::vector<Rank> Awaited() const;

 private:
  struct Flight {
    Completion completion;
    Rank peer;
  };
  // A strand's next wave, or the one under way.
  struct Strand {
    size_t wave = 0;
    size_t launched = 0;       // of the wave's transfers
    bool is_open = false;      // all of them are launched
    size_t local = 0;          // steps done
    uint64_t local_count = 0;  // elements done of the next step
    std::vector<Flight> in_flight;
  };

  bool Outlives(const absl::Status& status) const;
  absl::Status Poll(Strand& strand);
  void Compute(size_t index);
  void ComputeStep(const LocalStep& step, Strand& strand);
  void ComputeBlock(const LocalStep& step, uint64_t begin, uint64_t count);
  void Combine(std::byte* target, uint64_t count);
  // The type of the elements in a buffer.
  DType TypeOf(Buffer buffer) const {
    return buffer == Buffer::kFactors ? DType::kFloat64 : binding_.dtype;
  }
  absl::Status Issue();
  absl::StatusOr<bool> LaunchWave(size_t index);
  absl::Status LaunchTransfer(const Transfer& transfer, int32_t tag, Strand& strand);
  bool is_done() const;
  std::byte* At(const Piece& piece, uint64_t skip_count) const;

  OperationRunner& runner_;
  const Program* program_ = nullptr;
  ProgramBinding binding_;
  std::unique_ptr<std::byte[]> scratch_;
  uint64_t scratch_bytes_ = 0;
  std::vector<Strand> strands_;  // the program's are the first ones
  std::vector<const std::byte*> sources_;
  std::vector<Term> terms_;
  // The place in the order (wave, strand) from which the next transfers are launched.
  size_t next_wave_ = 0;
  size_t next_strand_ = 0;
  size_t waves_ = 0;
  size_t in_flight_count_ = 0;
  absl::Status status_;
  absl::Status difference_;  // see ProgramBinding::outlives_differences
  bool moved_ = false;
  uint64_t sent_bytes_ = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_PROGRAM_RUN_H_
