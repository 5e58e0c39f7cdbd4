// The sum of several ranks' versions of one piece, in rank order.
#ifndef PELTON_ALGORITHMS_STAGE_PIECE_SUM_H_
#define PELTON_ALGORITHMS_STAGE_PIECE_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/memory/dtype.h"

namespace pelton {

// Adds versions in the order in which they come, with the arithmetic of comm/reduction/reference.h:
// float16 and bfloat16 in float32, rounded once, at the end. Memory for two versions, however many
// there are. For each version: write it to next(), then Add(); at last Finish().
// Threads: one at a time. Owns: its buffers.
class PieceSum {
 public:
  PieceSum(DType dtype, uint64_t largest_count);

  // A piece of `count` elements begins. Requires: at most `largest_count`.
  void Begin(uint64_t count);
  // Where the next version's elements are to be written. Shape: [count].
  std::byte* next();
  void Add();
  // The sum, divided by `divisor`; valid until the next Begin. Shape: [count].
  const std::byte* Finish(uint64_t divisor);
  // The same before it is rounded to 16 bits: of the type of the sum.
  const std::byte* FinishWide(uint64_t divisor);
  // Whether these are two types: the sum's is float32 then.
  bool is_narrow() const { return dtype_ != sum_dtype_; }

 private:
  const DType dtype_;
  const DType sum_dtype_;  // float32 for the types of 16 bits
  uint64_t count_ = 0;
  bool is_first_ = true;
  std::vector<std::byte> sum_;
  std::vector<std::byte> version_;  // in dtype_
  std::vector<std::byte> wide_;     // the version in sum_dtype_, if that is another one
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_PIECE_SUM_H_
