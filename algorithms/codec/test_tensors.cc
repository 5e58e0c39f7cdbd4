#include "algorithms/codec/test_tensors.h"

#include <bit>
#include <cmath>

namespace pelton::codec {
namespace {

using Random = std::mt19937_64;
using Element = float (*)(Random&);

float Gauss(Random& random) { return std::normal_distribution<float>(0, 1)(random); }

float AnyBits(Random& random) { return std::bit_cast<float>(static_cast<uint32_t>(random())); }

TestTensor Filled(const char* kind, uint64_t count, Random& random, Element element) {
  TestTensor tensor{kind, std::vector<float>(count), true};
  for (float& x : tensor.elements) x = element(random);
  return tensor;
}

// `tensor` with one element, anywhere, replaced.
TestTensor With(const char* kind, float element, TestTensor tensor, Random& random) {
  tensor.kind = kind;
  if (tensor.elements.empty()) return tensor;
  tensor.elements[random() % tensor.elements.size()] = element;
  tensor.is_finite = std::isfinite(element);
  return tensor;
}

}  // namespace

std::vector<TestTensor> TestTensors(uint64_t count, Random& random) {
  const auto filled = [&](const char* kind, Element element) {
    return Filled(kind, count, random, element);
  };
  std::vector<TestTensor> tensors = {
      filled("plain", Gauss),
      filled("zeros", [](Random&) { return 0.0f; }),
      filled("constant", [](Random&) { return -0.3125f; }),
      filled("large constant", [](Random&) { return 1000.0f; }),
      filled("far from zero", [](Random& r) { return 1000.0f + 0x1p-10f * (r() % 64); }),
      filled("zeros of both signs", [](Random& r) { return r() % 2 == 0 ? 0.0f : -0.0f; }),
      // Halves of the steps of a range of 255: min_max_uint8's ties, and bfloat16's.
      filled("ties", [](Random& r) { return 0.5f * (static_cast<int>(r() % 511) - 255); }),
      filled("few values", [](Random& r) { return static_cast<float>(r() % 3) - 1; }),
      filled("denormals", [](Random& r) { return std::bit_cast<float>(uint32_t(r() % 9999)); }),
      filled("tiny", [](Random& r) { return 1e-9f * Gauss(r); }),
      filled("large", [](Random& r) { return 0x1p13f * std::tanh(Gauss(r)); }),
      filled("few non-zeros", [](Random& r) { return r() % 100 == 0 ? Gauss(r) : 0.0f; }),
      filled("many magnitudes", [](Random& r) { return std::exp2(8 * Gauss(r) - 20); }),
      filled("any bits", AnyBits),
  };
  tensors.back().is_finite = false;
  const TestTensor plain = tensors.front();
  tensors.push_back(With("one outlier", 3000.0f, plain, random));
  tensors.push_back(With("one NaN", NAN, plain, random));
  tensors.push_back(With("one infinity", INFINITY, plain, random));
  tensors.push_back(With("one negative infinity", -INFINITY, plain, random));
  // Finite in float32, but its range and its sums are not.
  tensors.push_back(filled("huge", [](Random& r) { return r() % 2 == 0 ? 3e38f : -3e38f; }));
  tensors.back().is_finite = false;
  return tensors;
}

}  // namespace pelton::codec
