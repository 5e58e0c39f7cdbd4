// The exchange of a compressed allreduce, among all ranks or the hosts' leaders.
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSED_EXCHANGE_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSED_EXCHANGE_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "algorithms/stage/codec_runner.h"
#include "comm/communicator.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"

namespace pelton {

// How a tensor is shared out among ranks.
// A chunk a rank, one after the other, all of the same count but for the last ones, which are
// shorter or empty: ceil(count / ranks), rounded up to whole cache lines.
// Threads: a value. Owns: nothing.
class Chunks {
 public:
  static constexpr uint64_t kAlignmentCount = 32;

  Chunks(uint64_t count, int32_t ranks) : count_(count) {
    const auto parts = static_cast<uint64_t>(ranks);
    const uint64_t share = (count + parts - 1) / parts;
    largest_ = (share + kAlignmentCount - 1) / kAlignmentCount * kAlignmentCount;
  }

  // Units of all: elements.
  uint64_t largest_count() const { return largest_; }
  uint64_t BeginOf(int32_t rank) const {
    return std::min(count_, static_cast<uint64_t>(rank) * largest_);
  }
  uint64_t CountOf(int32_t rank) const { return BeginOf(rank + 1) - BeginOf(rank); }

 private:
  uint64_t count_;
  uint64_t largest_;
};

// The stage's name and those of what it keeps with error feedback, under which a group that
// exchanges nothing keeps the same (MakeDeliverStage in tier_stages.h).
inline constexpr absl::string_view kCompressedExchange = "compressed exchange";
inline constexpr absl::string_view kResidual = "residual";
inline constexpr absl::string_view kServerResidual = "server_residual";

// What compressed_algorithm.h says, among `ranks`.
//
// Steps: the bucket goes in parts of some 2^19 elements, each with an all-to-all and an allgather,
// so that the wire has part t + 1 while this rank reduces part t and decodes part t - 1. Ranks
// launch in one order: all-to-all 0, all-to-all 1, allgather 0, all-to-all 2, allgather 1, ...
// Errors: those of Scratch::Create; InvalidArgument: the codec, or its error feedback, does not
// work on the device. Requires: the codec takes the bucket's dtype.
absl::StatusOr<std::unique_ptr<Stage>> MakeCompressedExchangeStage(
    const CompressedExchangeOptions& options, const BucketLayout& layout, Communicator& ranks);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSED_EXCHANGE_H_
