// QAdam's exchange: after the optimizer's warm-up (gradient_allreduce) the variances stand still
// and the ranks average their first moments, which they have updated by their own gradients, in
// encoded messages.
//
// Steps and bytes: those of stage/compressed_algorithm.h.
// Source: Bagua, arXiv 2107.01499; its QAdam is 1-bit Adam (arXiv 2102.02888) with MinMaxUInt8 in
// place of the sign and without error feedback.
#include "algorithms/algorithm.h"
#include "algorithms/stage/compressed_algorithm.h"

namespace pelton {
namespace {

// Options: those of CompressedAlgorithm, always a mean; codec min_max_uint8.
// Threads: as Algorithm. Owns: its options.
class QAdam final : public CompressedAlgorithm {
 public:
  QAdam()
      : CompressedAlgorithm(
            {.source = Source::kMomenta, .default_codec = "min_max_uint8", .may_sum = false}) {}
};

REGISTER_ALGORITHM(qadam, "average of all ranks' first moments, in encoded messages", QAdam);

}  // namespace
}  // namespace pelton
