// The compressed allreduce of all ranks in one process, one element at a time but for the codec,
// which has an oracle of its own (codec/reference.h): for tests.
#ifndef PELTON_ALGORITHMS_TEST_COMPRESSED_REFERENCE_H_
#define PELTON_ALGORITHMS_TEST_COMPRESSED_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithms/codec/codec.h"
#include "core/memory/dtype.h"

namespace pelton {

// Threads: a value. Owns: its text.
struct CompressedReferenceOptions {
  std::string codec;
  CodecOptions codec_options;
  std::vector<int32_t> part_sizes;  // ranks of each part: of each host, or 1 each
  DType dtype = DType::kFloat32;
  bool average = true;
  bool error_feedback = false;
};

// Threads: one. Owns: the residuals.
class CompressedReference {
 public:
  CompressedReference(CompressedReferenceOptions options, uint64_t count);

  // Elements of the flat part that no rank uses, whose residuals stay as they are.
  struct Unused {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // What all ranks hold after a round. Shape: by rank, [count] of the dtype each.
  std::vector<std::byte> Round(const std::vector<std::vector<std::byte>>& ranks, Unused unused);
  std::vector<std::byte> Round(const std::vector<std::vector<std::byte>>& ranks);

 private:
  // In float64, which holds every dtype's elements.
  using Elements = std::vector<double>;
  Elements Load(const std::vector<std::byte>& bytes) const;
  std::vector<std::byte> Store(const Elements& elements) const;
  // A sum of two or a quotient as the dtype's arithmetic rounds it, before it is stored.
  double Rounded(double value) const;
  // Of the ranks of one part; their mean, and its share of the result where parts differ in size.
  Elements HostSum(const std::vector<std::vector<std::byte>>& ranks, size_t first, int32_t size);
  Elements HostMean(const std::vector<std::vector<std::byte>>& ranks, size_t first, int32_t size);
  bool PartsAreEqual() const;
  // Of the sum over the parts.
  double Divisor() const;
  // Encoded and decoded, in pieces; `residual` is that of the elements, and is never rounded to 16
  // bits.
  Elements Sent(Elements elements, Elements* residual) const;
  Elements SentPiece(const Elements& elements) const;

  const CompressedReferenceOptions options_;
  const std::unique_ptr<Codec> codec_;
  const uint64_t count_;
  std::vector<Elements> residuals_;  // by part
  Elements server_residual_;         // of all chunks
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_TEST_COMPRESSED_REFERENCE_H_
