// The used tail of a bucket as one byte per slot, for messages that do not carry its elements.
#ifndef PELTON_ALGORITHMS_STAGE_USED_FLAGS_H_
#define PELTON_ALGORITHMS_STAGE_USED_FLAGS_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/bucket/bucket.h"
#include "core/bucket/plan.h"

namespace pelton {

// Size of the flags of a bucket, rounded up to 32; 0 without a used tail. Units: bytes.
uint64_t UsedFlagBytes(const BucketLayout& layout);

// 1 for each element of the tail that is not zero. Shape: tail [layout.tail_count] of the bucket's
// floating point dtype, flags [UsedFlagBytes(layout)].
void FlagsFromTail(const BucketLayout& layout, const std::byte* tail, std::byte* flags);
// flags = flags or others. Shape: both [UsedFlagBytes(layout)].
void OrFlags(const BucketLayout& layout, const std::byte* others, std::byte* flags);
// 1.0 for each flag that is set, else 0.0. Shape: as FlagsFromTail.
void TailFromFlags(const BucketLayout& layout, const std::byte* flags, std::byte* tail);

// Zeros between the slots of the bucket's flat part: what a lossy exchange leaves there must not
// count in the next.
void ZeroGaps(const Plan& plan, const BucketLayout& layout, std::byte* flat);
// Calls f(begin_bytes, size_bytes) for each of them.
void ForEachGap(const Plan& plan, const BucketLayout& layout,
                absl::FunctionRef<void(uint64_t, uint64_t)> f);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_USED_FLAGS_H_
