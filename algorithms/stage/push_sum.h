// Averaging over graphs in which ranks give equal shares of what they have but do not take means: a
// share of the number one travels along, and says what to divide by.
//
// State per bucket: the numerator s, which begins as the weights, and the share w, which begins at
// 1 and is kept as w - 1 (one number, once for each element, because what a stage keeps goes tensor
// by tensor into another plan). With z = s / w the weights that this stage left there last, z'
// those that it finds, and C the shares that ranks give (GraphOptions::EqualShares):
//   s = C (s + (z' - z));  w = C w;  z = s / w
// The sums over all ranks of s and of w are kept, up to rounding. Numerators are float32 for
// tensors of 16 bits. In a global round all ranks have the mean of s, and w = 1. Steps: a send for
// each destination and a receive for each source. Bytes: one element more than the bucket has, in
// the numerator's dtype, to each destination.
#ifndef PELTON_ALGORITHMS_STAGE_PUSH_SUM_H_
#define PELTON_ALGORITHMS_STAGE_PUSH_SUM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "algorithms/stage/neighbor_mean.h"

namespace pelton {

// The bucket, z', becomes z, or with `gives_change` z - z', which is added to the weights
// later. The weights as that leaves them, z' + (z - z'), are kept as well then, and take the place
// of z in the next round. Errors: those of Scratch::Create.
absl::StatusOr<std::unique_ptr<Stage>> MakePushSumStage(Communicator& communicator,
                                                        NeighborMean::Over over,
                                                        const BucketLayout& layout,
                                                        bool gives_change = false);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_PUSH_SUM_H_
