// 1-bit Adam's exchange: as QAdam's, with a sign an element and error feedback on both sides.
// 0/1 Adam exchanges its accumulated momenta in the same way, in fewer rounds, which its optimizer
// chooses.
//
// Steps and bytes: those of stage/compressed_algorithm.h.
// Source: 1-bit Adam, arXiv 2102.02888, algorithm 1, compressed stage; 0/1 Adam, arXiv 2202.06009,
// the 1-bit allreduce of algorithm 1. The authors' code (DeepSpeed) scales the signs of a rank's
// whole tensor, and those of each chunk of the mean, by their root mean square; here the scale is
// the codec's, the mean magnitude of each 1024 elements.
#include "algorithms/algorithm.h"
#include "algorithms/stage/compressed_algorithm.h"

namespace pelton {
namespace {

// Options: those of CompressedAlgorithm, always a mean; codec one_bit.
// Threads: as Algorithm. Owns: its options.
class OneBitAdam final : public CompressedAlgorithm {
 public:
  OneBitAdam()
      : CompressedAlgorithm(
            {.source = Source::kMomenta, .default_codec = "one_bit", .may_sum = false}) {}
};

REGISTER_ALGORITHM(one_bit_adam, "average of all ranks' first moments, a sign an element",
                   OneBitAdam);

}  // namespace
}  // namespace pelton
