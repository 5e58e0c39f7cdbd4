// What a model's rounds are at, for people who look from outside.
#ifndef PELTON_CORE_ROUND_ROUND_SIGHT_H_
#define PELTON_CORE_ROUND_ROUND_SIGHT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"

namespace pelton {

// Of the round that is open, at one moment. Threads: a value. Owns: its texts.
struct RoundSight {
  Round round;
  int32_t bucket_count = 0;
  int32_t ready_count = 0;     // buckets whose tensors are all marked on this rank
  int32_t complete_count = 0;  // buckets whose results are there
  // The bucket that communicates now, with its tensors and its operation; "": none does.
  std::string work;
  absl::Time work_since = absl::InfiniteFuture();
  std::vector<Rank> missing;  // that have not come to that operation, as far as the wire can tell
  // The bucket that is next, and which of its tensors this rank has yet to mark; "": none, or no
  // bucket of the round is ready and nobody waits.
  std::string awaited;
  // Since when the trainer waits for the round; InfiniteFuture: it does not.
  absl::Time waited_since = absl::InfiniteFuture();
  // When a bucket was last ready, or its communication last over; InfinitePast: never.
  absl::Time moved_at = absl::InfinitePast();
  absl::Time now;  // of the clock that the other times are of

  // A bucket is ready, or the trainer waits. Between rounds it is not, nor while a round's first
  // bucket is not ready.
  bool is_under_way() const { return ready_count > 0 || waited_since < absl::InfiniteFuture(); }
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_ROUND_SIGHT_H_
