// Tensors that codecs find hard, for their tests.
#ifndef PELTON_ALGORITHMS_CODEC_TEST_TENSORS_H_
#define PELTON_ALGORITHMS_CODEC_TEST_TENSORS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace pelton::codec {

struct TestTensor {
  std::string kind;  // for messages
  std::vector<float> elements;
  bool is_finite;
};

// One of each kind: plain, constant, ties, denormals, huge, one outlier, few non-zeros, mixed
// magnitudes, zeros of both signs, NaN, infinities, any bits.
std::vector<TestTensor> TestTensors(uint64_t count, std::mt19937_64& random);

}  // namespace pelton::codec

#endif  // PELTON_ALGORITHMS_CODEC_TEST_TENSORS_H_
