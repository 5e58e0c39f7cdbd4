// Every bound of the runtime in one place, and sizes in whole units.
#ifndef PELTON_CORE_BASE_LIMITS_H_
#define PELTON_CORE_BASE_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace pelton::limits {

inline constexpr size_t kMailboxCapacity = 4096;       // messages, when an actor names no other
inline constexpr size_t kMaxOperationsInFlight = 256;  // per communicator
inline constexpr int32_t kMaxWorldSize = 1 << 16;      // ranks
inline constexpr size_t kMaxKeyBytes = 1024;           // of the key-value store
inline constexpr size_t kMaxValueBytes = size_t{16} << 20;   // of the key-value store
inline constexpr size_t kMaxStoreBytes = size_t{256} << 20;  // keys and values of one job
inline constexpr size_t kMaxKeysPerRequest = 1024;           // of the key-value store
inline constexpr size_t kMaxNameBytes = 256;                 // of a job, an address
inline constexpr size_t kMaxJobs = 64;                       // at one coordinator
inline constexpr size_t kDefaultBucketBytes = size_t{10} << 20;
inline constexpr uint64_t kMaxBucketBytes = uint64_t{1} << 34;  // that may be asked for
inline constexpr size_t kMaxTensorsPerPlan = size_t{1} << 20;
inline constexpr uint64_t kMaxPlanBytes = uint64_t{1} << 44;
inline constexpr size_t kRegionAlignmentBytes = 4096;  // regions start on a page
inline constexpr size_t kSlotAlignmentBytes = 64;      // slots start on a cache line
// An evaluation on rank 0 alone fits into it; gloo's is the same.
inline constexpr absl::Duration kDefaultOperationTimeout = absl::Minutes(30);
inline constexpr absl::Duration kDefaultJoinTimeout = kDefaultOperationTimeout;
inline constexpr absl::Duration kHeartbeatInterval = absl::Seconds(1);
inline constexpr absl::Duration kHeartbeatTimeout = absl::Seconds(10);
inline constexpr absl::Duration kStopTimeout = absl::Seconds(10);

}  // namespace pelton::limits

namespace pelton {

// The least multiple of `unit`, which is not 0, that is not below `value`.
inline constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace pelton

#endif  // PELTON_CORE_BASE_LIMITS_H_
