// The k-th largest of many keys.
#ifndef PELTON_ALGORITHMS_CODEC_KTH_LARGEST_H_
#define PELTON_ALGORITHMS_CODEC_KTH_LARGEST_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace pelton::codec {

// Threads: a value. Owns: nothing.
struct KthLargestKey {
  uint32_t key;
  uint64_t equal;  // how many of those at `key` are among the `rank` largest
};

// The key of the `rank`-th largest, counted from 1, in time linear in the keys' number whatever
// they are: by counts of evenly divided ranges, each of the next one's keys. Overwrites the keys.
// Requires: 1 <= rank <= keys.size(); keys below 2^31.
KthLargestKey KthLargest(absl::Span<uint32_t> keys, uint64_t rank);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_KTH_LARGEST_H_
