// Selection from tensors that mislead its sample or its order; conformance_test has the others.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/reference.h"
#include "core/base/sanitizer.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
constexpr uint64_t kCount = kSanitized ? 10001 : 50001;

struct Messages {
  std::vector<std::byte> encoded;
  std::vector<std::byte> reference;
};

Messages Encode(const std::vector<float>& elements, DType dtype, const std::string& ratio) {
  const CodecOptions options = {{"ratio", ratio}};
  const std::unique_ptr<Codec> codec = *MakeCodec("top_k", options);
  const std::vector<std::byte> source = ElementsOfFloats(elements, dtype);
  const uint64_t bytes = codec->EncodedBytes(elements.size(), dtype);
  std::unique_ptr<std::byte, void (*)(void*)> encoded(
      static_cast<std::byte*>(std::aligned_alloc(32, bytes)), std::free);
  codec->Encode(source.data(), elements.size(), dtype, encoded.get());
  return {{encoded.get(), encoded.get() + bytes},
          *ReferenceEncode("top_k", options, source.data(), elements.size(), dtype)};
}

void ExpectLikeReference(const std::function<float(uint64_t i)>& element) {
  std::vector<float> elements(kCount);
  for (uint64_t i = 0; i < kCount; ++i) elements[i] = element(i);
  for (const DType dtype : kDTypes) {
    for (const char* ratio : {"0.00001", "0.01", "0.2", "0.7"}) {
      const Messages messages = Encode(elements, dtype, ratio);
      EXPECT_TRUE(messages.encoded == messages.reference) << dtype << ", ratio " << ratio;
    }
  }
}

std::function<float(uint64_t)> Gauss(uint64_t seed) {
  auto random = std::make_shared<std::mt19937_64>(seed);
  return [random](uint64_t) { return std::normal_distribution<float>(0, 1)(*random); };
}

TEST(TopKTest, TakesAnyOrder) {
  ExpectLikeReference(Gauss(1));
  ExpectLikeReference([](uint64_t i) { return static_cast<float>(i) * 0x1p-10f; });
  ExpectLikeReference([](uint64_t i) { return static_cast<float>(kCount - i) * 0x1p-10f; });
}

TEST(TopKTest, TakesLayersOfDifferentMagnitude) {
  const auto gauss = Gauss(2);
  ExpectLikeReference([&](uint64_t i) { return gauss(i) * (i < kCount / 50 ? 100.0f : 0.01f); });
  ExpectLikeReference([&](uint64_t i) { return gauss(i) * (i > kCount / 2 ? 8.0f : 0.5f); });
}

// Whatever its stride, a sample of such a tensor says that there are more or fewer large elements
// than there are: all of one residue are.
TEST(TopKTest, TakesPeriodsThatMisleadItsSample) {
  const auto gauss = Gauss(3);
  for (const uint64_t period : {3, 5, 13, 65}) {
    for (const uint64_t residue : {uint64_t{0}, period / 2}) {
      ExpectLikeReference([&](uint64_t i) {
        return gauss(i) * (i % period == residue && i < kCount * 3 / 4 ? 10.0f : 1.0f);
      });
    }
  }
}

TEST(TopKTest, TakesTies) {
  ExpectLikeReference([](uint64_t) { return -0.5f; });
  ExpectLikeReference([](uint64_t i) { return i % 3 == 0 ? 1.0f : -1.0f; });
  ExpectLikeReference([](uint64_t i) { return static_cast<float>(i * 7919 % 5); });
}

TEST(TopKTest, TakesWhatIsNotFinite) {
  const auto gauss = Gauss(4);
  ExpectLikeReference([&](uint64_t i) { return i % 9 == 0 ? NAN : gauss(i); });
  ExpectLikeReference([&](uint64_t i) { return i % 9 == 0 ? -INFINITY : gauss(i); });
  ExpectLikeReference([&](uint64_t i) { return i % 9 == 0 ? 1e30f : i % 5 == 0 ? NAN : gauss(i); });
  ExpectLikeReference([](uint64_t) { return NAN; });
}

}  // namespace
}  // namespace pelton::codec
