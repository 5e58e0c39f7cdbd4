// ByteGrad: gradient allreduce whose messages are encoded, by default a byte an element between the
// smallest and the largest of each piece. After each backward pass every rank holds the same
// average of the ranks' gradients, quantised twice.
//
// Steps and bytes: those of stage/compressed_algorithm.h. Bagua encodes the whole chunk of a rank
// between one smallest and one largest element; here each piece of it has its own.
// Source: Bagua, arXiv 2107.01499, section 3.2 (C_LP_S); there "ByteGrad".
#include "algorithms/algorithm.h"
#include "algorithms/stage/compressed_algorithm.h"

namespace pelton {
namespace {

// Options: those of CompressedAlgorithm, `average` too; codec min_max_uint8.
// Threads: as Algorithm. Owns: its options.
class ByteGrad final : public CompressedAlgorithm {
 public:
  ByteGrad()
      : CompressedAlgorithm(
            {.source = Source::kGradients, .default_codec = "min_max_uint8", .may_sum = true}) {}
};

REGISTER_ALGORITHM(bytegrad, "average of all ranks' gradients, in encoded messages", ByteGrad);

}  // namespace
}  // namespace pelton
