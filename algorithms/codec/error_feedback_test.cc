#include "algorithms/codec/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "algorithms/codec/convert.h"
#include "algorithms/codec/keep_rest.h"
#include "algorithms/codec/reference.h"
#include "algorithms/codec/test_tensors.h"
#include "comm/reduction/reduction.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using Bytes = std::vector<std::byte>;

// A sender with its residual.
class Sender {
 public:
  Sender(const std::string& name, uint64_t count, DType dtype)
      : codec_(*MakeCodec(name, {})),
        count_(count),
        dtype_(dtype),
        residual_(count * SizeOf(FeedbackDType(dtype))),
        decoded_(count * SizeOf(dtype)),
        memory_(codec_->EncodedBytes(count, dtype) + 32) {}

  // What peers get of it.
  std::vector<float> Send(const std::vector<float>& elements) {
    const Bytes source = codec::ElementsOfFloats(elements, dtype_);
    EncodeWithFeedback(*codec_, source.data(), count_, dtype_, residual_.data(), Encoded(),
                       decoded_.data());
    return codec::FloatsOfElements(decoded_.data(), count_, dtype_);
  }
  // Sends, and checks each tensor and the message with what Encode and Decode give of the sum.
  void ExpectSendsStepByStep(const std::vector<float>& elements) {
    const Bytes source = codec::ElementsOfFloats(elements, dtype_);
    Bytes rest = residual_;
    const DType wide = FeedbackDType(dtype_);
    const Bytes wide_source = Converted(source, {dtype_, wide});
    const std::byte* const terms[] = {wide_source.data(), rest.data()};
    std::byte* const sum = rest.data();
    Reduce(terms, {&sum, 1}, count_, wide, ReduceOp::kSum);
    Bytes decoded(decoded_.size());
    codec_->Encode(Converted(rest, {wide, dtype_}).data(), count_, dtype_, Encoded());
    const Bytes message(Encoded(), Encoded() + codec_->EncodedBytes(count_, dtype_));
    codec_->Decode(Encoded(), count_, dtype_, decoded.data());
    codec::KeepRest(Converted(decoded, {dtype_, wide}).data(), count_, wide, rest.data());

    Send(elements);
    EXPECT_TRUE(std::equal(message.begin(), message.end(), Encoded()));
    EXPECT_TRUE(decoded_ == decoded);
    EXPECT_TRUE(residual_ == rest);
  }
  std::vector<float> Residual() const {
    return codec::FloatsOfElements(residual_.data(), count_, FeedbackDType(dtype_));
  }

 private:
  Bytes Converted(const Bytes& source, codec::Conversion types) const {
    if (types.from == types.to) return source;
    Bytes target(count_ * SizeOf(types.to));
    codec::Convert(source.data(), count_, types, target.data());
    return target;
  }
  std::byte* Encoded() {
    void* encoded = memory_.data();
    size_t space = memory_.size();
    return static_cast<std::byte*>(std::align(32, memory_.size() - 32, encoded, space));
  }

  std::unique_ptr<Codec> codec_;
  uint64_t count_;
  DType dtype_;
  Bytes residual_;
  Bytes decoded_;
  Bytes memory_;
};

class ErrorFeedbackTest : public ::testing::TestWithParam<const char*> {};

// What was sent and what is left add up to what was to be sent.
TEST_P(ErrorFeedbackTest, LosesNothingInTheLongRun) {
  const uint64_t seed = 20261121;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> gauss(0, 1);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    SCOPED_TRACE(NameOf(dtype));
    for (const uint64_t count : {1, 100, 777}) {
      Sender sender(GetParam(), count, dtype);
      std::vector<double> wanted(count);
      std::vector<double> sent(count);
      for (int step = 0; step < 50; ++step) {
        std::vector<float> elements(count);
        for (float& x : elements) x = gauss(random);
        const Bytes source = codec::ElementsOfFloats(elements, dtype);
        elements = codec::FloatsOfElements(source.data(), count, dtype);
        const std::vector<float> decoded = sender.Send(elements);
        for (uint64_t i = 0; i < count; ++i) {
          wanted[i] += elements[i];
          sent[i] += decoded[i];
        }
      }
      const std::vector<float> residual = sender.Residual();
      for (uint64_t i = 0; i < count; ++i) EXPECT_NEAR(sent[i] + residual[i], wanted[i], 2e-4) << i;
    }
  }
}

// One large element beside it makes every message of a small one a large error. What is kept of
// that in 16 bits swallows it.
TEST_P(ErrorFeedbackTest, SendsWhatIsSmallInTheLongRun) {
  constexpr int kSteps = 4000;
  const float small = 0.00390625f;  // in every type
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    SCOPED_TRACE(NameOf(dtype));
    Sender sender(GetParam(), 32, dtype);
    std::vector<float> elements(32, small);
    elements[0] = 4;
    double sent = 0;
    for (int step = 0; step < kSteps; ++step) sent += sender.Send(elements)[5];
    const double kept = sender.Residual()[5];
    EXPECT_NEAR((sent + kept) / kSteps, small, 1e-3 * small);
    EXPECT_NEAR(sent / kSteps, small, 0.5 * small);
  }
}

TEST_P(ErrorFeedbackTest, ForgetsWhatIsNotFinite) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    Sender sender(GetParam(), 40, dtype);
    std::vector<float> elements(40, 0.5f);
    elements[7] = INFINITY;
    elements[9] = NAN;
    const std::vector<float> bad = sender.Send(elements);
    bool is_finite = true;
    for (const float x : bad) is_finite = is_finite && std::isfinite(x);
    EXPECT_FALSE(is_finite) << "the message hides an overflow of " << dtype;
    for (const float x : sender.Residual()) EXPECT_TRUE(std::isfinite(x)) << x;
    for (const float x : sender.Send(std::vector<float>(40, 0.5f))) EXPECT_TRUE(std::isfinite(x));
  }
}

// A codec may take the steps together; what comes of them is the same to the last bit.
TEST_P(ErrorFeedbackTest, IsWhatItsStepsGive) {
  std::mt19937_64 random(5);
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64}) {
    for (const uint64_t count : {1, 100, 4096, 9001}) {
      Sender sender(GetParam(), count, dtype);
      for (const codec::TestTensor& tensor : codec::TestTensors(count, random)) {
        SCOPED_TRACE(::testing::Message() << tensor.kind << ", " << count << " of " << dtype);
        sender.ExpectSendsStepByStep(tensor.elements);
        if (HasFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, ErrorFeedbackTest,
                         ::testing::Values("block_uint8", "block_int4", "one_bit", "top_k",
                                           "min_max_uint8", "float16"));

}  // namespace
}  // namespace pelton
