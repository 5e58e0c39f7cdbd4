// Now and then all ranks continue from the same weights: the anchor, moved by how far the ranks
// have come since on average. What such algorithms exchange is small differences, which a codec
// may encode.
//
// State per bucket: the anchor a, which begins as the initial model, and with a momentum m > 0 the
// velocity v, which begins at zero. With x_i rank i's weights and r the learning rate:
//   g = (sum over i of (a - x_i)) / n;  v = m v + g;  a = a - r (g + m v);  x_i = a
// which is SGD's step with PyTorch's form of Nesterov's momentum; with plain momentum
//   a = a - r v
// instead. r = 1 and m = 0 is the mean of the weights.
#ifndef PELTON_ALGORITHMS_STAGE_OUTER_STEP_H_
#define PELTON_ALGORITHMS_STAGE_OUTER_STEP_H_

#include "absl/status/status.h"
#include "algorithms/stage/compressed_algorithm.h"
#include "comm/tiers.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"

namespace pelton {

// Threads: a value. Owns: nothing.
struct OuterStepOptions {
  double learning_rate = 1;
  double momentum = 0;
  bool nesterov = true;
};

// Appends the stages to `spec`, whose bucket then holds a rank's weights before them and the anchor
// after them. Without a codec the exchange is an allreduce in full precision. Errors: those of
// CompressedAllReduce.
absl::Status AddOuterStep(const OuterStepOptions& options, const CompressionOptions& compression,
                          const BucketLayout& layout, const Tiers& tiers, PipelineSpec& spec);

// Appends the stages without the exchange: what the bucket holds before them is the mean with
// whomever this rank has met, and anchor and velocity are this rank's own.
void AddOwnOuterStep(const OuterStepOptions& options, const BucketLayout& layout,
                     PipelineSpec& spec);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_OUTER_STEP_H_
