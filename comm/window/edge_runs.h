// What is done to the edges of a window, in steps, so that a simulation can put anything between;
// and what it computes, for numbers of floating point and whole ones.
#ifndef PELTON_COMM_WINDOW_EDGE_RUNS_H_
#define PELTON_COMM_WINDOW_EDGE_RUNS_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/reduction/linear_combination.h"
#include "comm/window/window_memory.h"
#include "core/memory/dtype.h"

namespace pelton {

// Errors: InvalidArgument: windows hold no such elements (they hold float16 to float64, bfloat16,
// int32 and int64).
absl::Status CheckWindowType(DType dtype);
// Errors: InvalidArgument: `weight` is not finite, or not whole where the elements are.
absl::Status CheckWindowWeight(DType dtype, double weight);

// target = the sum of factor * term, from the left, as LinearCombination; whole numbers wrap.
// Shape: all [count], all of `dtype`; the target may be one of the terms. Requires: both checks.
void WeightedSum(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype);
// target = the sum of the terms, whatever their factors, divided by `divisor`. The same shapes.
// Requires: no whole numbers.
void MeanOf(absl::Span<const Term> terms, std::byte* target, uint64_t count, DType dtype,
            size_t divisor);

// Elements of a step: all at once, unless a test wants to see what comes between.
inline constexpr uint64_t kWholeValue = std::numeric_limits<uint64_t>::max();

// A value on its way into an inlet: a put, or with `adds` an accumulate.
// Threads: the edge's writer. Owns: what it has taken of the inlet, until it is done.
class EdgeWrite {
 public:
  struct What {
    const std::byte* source = nullptr;  // [count]
    uint64_t count = 0;
    DType dtype = DType::kFloat32;
    double weight = 1;
    bool adds = false;
    std::optional<double> p;  // what becomes p, or is added to it; none: p stays
    uint64_t step_count = kWholeValue;
  };
  EdgeWrite(const EdgeView& edge, const What& what) : edge_(edge), what_(what) {}

  // A step: true once the value is published. Blocks: never. Errors: those of EdgeView::Provide.
  absl::StatusOr<bool> Advance();

 private:
  bool Publish();

  const EdgeView edge_;
  const What what_;
  std::optional<Inlet::Draft> draft_;
  uint64_t done_ = 0;
};

// The owner's get: the value of another rank's tensor, into this rank's inlet.
// Threads: the owner. Owns: what it has taken of the inlet, until it is done.
class EdgeFill {
 public:
  struct What {
    pid_t pid = 0;         // whose memory it is
    uint64_t address = 0;  // there
    uint64_t count = 0;
    DType dtype = DType::kFloat32;
    double weight = 1;
    uint64_t step_count = kWholeValue;
  };
  EdgeFill(const EdgeView& edge, const What& what) : edge_(edge), what_(what) {}

  // A step: true once the value is published. Blocks: while the kernel copies. Errors: those of
  // shm::ReadMemory and of EdgeView::Provide.
  absl::StatusOr<bool> Advance();

 private:
  const EdgeView edge_;
  const What what_;
  int buffer_ = -1;
  uint64_t done_ = 0;
};

// The owner's update: target = own * tensor + the sum of weight * inlet.
// Threads: the owner. Owns: what it has taken of the inlets, until it is done.
class OwnerUpdate {
 public:
  struct Source {
    EdgeView edge;
    double weight = 1;
  };
  struct What {
    const std::byte* tensor = nullptr;  // [count]
    std::byte* target = nullptr;        // [count]; the tensor itself for in place
    uint64_t count = 0;
    DType dtype = DType::kFloat32;
    double own_weight = 1;
    std::vector<Source> sources = {};  // in the order of the sum
    bool is_mean = false;  // the sum of all, divided by their number: weights mean nothing
    bool resets = false;
    std::optional<double> p;  // the owner's before; none: p stays, everywhere
    uint64_t step_count = kWholeValue;
  };
  explicit OwnerUpdate(What what);

  // A step: true once it is done and the inlets are free again. Blocks: never.
  bool Advance();
  // The owner's p, where it was given, once all inlets have been taken.
  std::optional<double> p() const { return what_.p; }

 private:
  void Take();
  void Combine();

  What what_;
  std::vector<Term> terms_;
  size_t taken_ = 0;
  uint64_t done_ = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_EDGE_RUNS_H_
