// PowerSGD's exchange: two thin factors in place of each matrix.
#ifndef PELTON_ALGORITHMS_STAGE_POWER_SGD_STAGE_H_
#define PELTON_ALGORITHMS_STAGE_POWER_SGD_STAGE_H_

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "core/bucket/plan.h"
#include "core/bucket/tensor_spec.h"
#include "core/pipeline/stage.h"

namespace pelton {

// The stage's name and those of what it keeps, under which one rank keeps the same (deliver.h).
inline constexpr absl::string_view kPowerSgd = "power sgd";
inline constexpr absl::string_view kPowerSgdError = "error";
inline constexpr absl::string_view kPowerSgdQuery = "query";

// Threads: a value. Owns: nothing.
struct PowerSgdOptions {
  uint64_t rank = 1;           // of the approximation
  double min_compression = 2;  // a matrix is compressed where that makes it smaller by more
  uint64_t start_round = 1;    // earlier rounds are allreduces
};

// Elements that travel for one bucket, in the two allreduces of a round. Units: elements of
// float64 for a float64 bucket, else of float32.
struct PowerSgdCounts {
  uint64_t first = 0;   // left factors, tensors that are not compressed, uses of the matrices
  uint64_t second = 0;  // right factors
};

// Whether a tensor's factors travel in its place.
bool IsCompressed(const TensorSpec& tensor, const PowerSgdOptions& options);
PowerSgdCounts PowerSgdCountsOf(const Plan& plan, const BucketLayout& layout,
                                const PowerSgdOptions& options);

// Exchange: the mean over `ranks`, each matrix by an approximation of rank options.rank; what an
// approximation drops is added to the next round's tensor ("error"), and it starts from the last
// one ("query": unit vectors, in the first elements of their matrix; zeros before the first round).
// Takes buckets of floating point, without standalone tensors.
std::unique_ptr<Stage> MakePowerSgdStage(const PowerSgdOptions& options, const BucketLayout& layout,
                                         Communicator& ranks);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_POWER_SGD_STAGE_H_
