// Distinct types for the numbers that name things, so that one is never passed for another.
#ifndef PELTON_CORE_BASE_IDS_H_
#define PELTON_CORE_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"

namespace pelton {

// An integer with a name of its own. `Tag` only tells the types apart.
// Threads: a value. Owns: nothing.
template <typename Tag, typename T>
class Id {
 public:
  using value_type = T;
  constexpr Id() = default;
  explicit constexpr Id(T value) : value_(value) {}
  constexpr T value() const { return value_; }

  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  template <typename H>
  friend H AbslHashValue(H state, Id id) {
    return H::combine(std::move(state), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, Id id) { return os << +id.value_; }

 private:
  T value_ = T{};
};

// Number of a process in its group, from 0.
using Rank = Id<struct RankTag, int32_t>;
// Number of ranks in a group.
using WorldSize = Id<struct WorldSizeTag, int32_t>;
// Number of a bucket in its plan, from 0.
using BucketId = Id<struct BucketIdTag, int32_t>;
// Place of a tensor in its plan's list of tensors, from 0.
using SlotId = Id<struct SlotIdTag, int32_t>;
// Number of a membership or of a plan; grows by one with each change (GEN-1).
using Generation = Id<struct GenerationTag, uint32_t>;
// Name of a communicator: one per group and traffic class, the same on all of its ranks.
using CommunicatorId = Id<struct CommunicatorIdTag, uint32_t>;
// Name of a memory region inside its process; 0 is the private address space
// (core/memory/region.h).
using RegionId = Id<struct RegionIdTag, uint32_t>;
// Number of a round (first ready tensor to end of backward) of one model, from 1.
using Round = Id<struct RoundTag, uint64_t>;

}  // namespace pelton

#endif  // PELTON_CORE_BASE_IDS_H_
