// An allreduce whose messages are encoded by a codec: what ByteGrad, QAdam and 1-bit Adam exchange.
//
// Steps, among n ranks, each rank being responsible for one chunk of the bucket's flat part: encode
// every chunk; all-to-all; decode the n versions of the own chunk, add them in rank order, divide;
// encode the result; allgather; decode all chunks, the own one too, so that all ranks end with the
// same bits. A chunk is encoded in pieces of 16384 elements (PieceCodec).
// Hierarchical: the host's ranks are first summed onto its leader in full precision; the leaders
// exchange those sums and divide by the number of ranks, so that the mean is one over ranks however
// unequal the hosts are; the leader broadcasts. With one host, or one rank, nothing is encoded: an
// allreduce.
// Bytes that a rank (hierarchical: a leader, beside what its host moves inside) sends for a bucket:
// (n - 1) * (2 * E + F), where E = CompressedChunkBytes(...) of compressed_exchange.h and F = a
// byte for each tensor of the bucket, rounded up to 32: which ranks used what travels exactly.
// Source: Bagua (arXiv 2107.01499, section 3.2); with error feedback on both sides, 1-bit Adam
// (arXiv 2102.02888, algorithm 1).
#ifndef PELTON_ALGORITHMS_STAGE_COMPRESSED_ALLREDUCE_H_
#define PELTON_ALGORITHMS_STAGE_COMPRESSED_ALLREDUCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "algorithms/codec/codec.h"
#include "comm/tiers.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"

namespace pelton {

// Threads: a value. Owns: a share of the codec, which the stages of all buckets use.
struct CompressedAllReduceOptions {
  std::shared_ptr<const Codec> codec;
  bool average = true;  // else the sum
  // Whether what a message drops is added to the next one: on the worker's side beside the whole
  // flat part ("residual"), on the server's beside the own chunk ("server_residual"). What is added
  // to a tensor that nobody uses in that round is lost.
  bool error_feedback = false;
};

// What the stages ask of the plan.
PlanConstraints CompressedAllReduceConstraints();

// The whole pipeline, over `tiers` where they are open, else over `tiers.all`. Errors:
// InvalidArgument: the codec does not take the bucket's dtype; those of Scratch::Create.
absl::StatusOr<PipelineSpec> CompressedAllReduce(const CompressedAllReduceOptions& options,
                                                 const BucketLayout& layout, const Tiers& tiers);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_COMPRESSED_ALLREDUCE_H_
