// Runs over every registered codec, with its default options and those listed here.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/reference.h"
#include "algorithms/codec/test_tensors.h"
#include "core/base/sanitizer.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace pelton::codec {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
// Around the lengths of vectors, of blocks, and of what is converted at a time.
constexpr uint64_t kCounts[] = {0,    1,    2,    3,    7,    8,    15,   16,   17,   31,   32,
                                33,   63,   64,   65,   127,  128,  129,  255,  256,  257,  511,
                                1000, 1023, 1024, 1025, 2048, 2500, 4095, 4096, 4097, 8192, 9001};
constexpr uint64_t kMaxCount = kSanitized ? 1025 : 9001;
constexpr std::byte kUntouched{0x5A};

struct Case {
  std::string name;
  CodecOptions options;
};

std::string Text(const Case& c) {
  std::string text = c.name;
  for (const auto& [option, value] : c.options) text += "(" + option + "=" + value + ")";
  return text;
}

// Every codec as it comes, and every option that changes a format.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const CodecRegistry::Entry& entry : CodecRegistry::Get().List()) {
    cases.push_back({entry.name, {}});
    const auto codec = entry.factory();
    for (const char* block : {"32", "4096"}) {
      if (codec->Configure({{"block", block}}).ok()) {
        cases.push_back({entry.name, {{"block", block}}});
      }
    }
    for (const char* ratio : {"0.3", "1"}) {
      if (codec->Configure({{"ratio", ratio}}).ok()) {
        cases.push_back({entry.name, {{"ratio", ratio}}});
      }
    }
  }
  return cases;
}

// Memory at an address that is `offset` past an aligned one, with a fence behind it.
class Placed {
 public:
  Placed(uint64_t bytes, size_t offset)
      : memory_(bytes + 128, kUntouched), bytes_(bytes), offset_(offset) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (64 - address % 64) % 64 + offset_;
  }
  void Fill(const std::vector<std::byte>& bytes) {
    if (!bytes.empty()) std::memcpy(data(), bytes.data(), bytes.size());
  }
  std::vector<std::byte> Bytes() { return {data(), data() + bytes_}; }
  bool FencesStand() {
    for (std::byte* at = memory_.data(); at < data(); ++at) {
      if (*at != kUntouched) return false;
    }
    for (std::byte* at = data() + bytes_; at < memory_.data() + memory_.size(); ++at) {
      if (*at != kUntouched) return false;
    }
    return true;
  }

 private:
  std::vector<std::byte> memory_;
  uint64_t bytes_;
  size_t offset_;
};

// Bitwise the same, but that any NaN is as good as another.
::testing::AssertionResult Same(const std::vector<std::byte>& got,
                                const std::vector<std::byte>& want, DType dtype) {
  const uint64_t count = want.size() / SizeOf(dtype);
  const std::vector<float> a = FloatsOfElements(got.data(), count, dtype);
  const std::vector<float> b = FloatsOfElements(want.data(), count, dtype);
  for (uint64_t i = 0; i < count; ++i) {
    const size_t at = i * SizeOf(dtype);
    if (std::memcmp(&got[at], &want[at], SizeOf(dtype)) == 0) continue;
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    return ::testing::AssertionFailure() << "element " << i << " is " << a[i] << ", not " << b[i];
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult SameBytes(const std::vector<std::byte>& got,
                                     const std::vector<std::byte>& want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " bytes, not " << want.size();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    return ::testing::AssertionFailure()
           << "byte " << i << " is " << int(got[i]) << ", not " << int(want[i]);
  }
  return ::testing::AssertionSuccess();
}

// One codec and dtype under test.
class Subject {
 public:
  Subject(Case which, DType dtype) : case_(std::move(which)), dtype_(dtype) {
    codec_ = *MakeCodec(case_.name, case_.options);
  }
  const Codec& codec() const { return *codec_; }

  std::vector<std::byte> Encode(const std::vector<std::byte>& source, size_t offset) const {
    const uint64_t count = source.size() / SizeOf(dtype_);
    Placed from(source.size(), offset);
    Placed encoded(codec_->EncodedBytes(count, dtype_), 32);
    from.Fill(source);
    codec_->Encode(from.data(), count, dtype_, encoded.data());
    EXPECT_TRUE(encoded.FencesStand()) << "Encode wrote outside";
    EXPECT_TRUE(from.Bytes() == source) << "Encode changed its source";
    return encoded.Bytes();
  }

  std::vector<std::byte> Decode(const std::vector<std::byte>& encoded, uint64_t count,
                                size_t offset) const {
    Placed from(encoded.size(), 0);
    Placed target(count * SizeOf(dtype_), offset);
    from.Fill(encoded);
    codec_->Decode(from.data(), count, dtype_, target.data());
    EXPECT_TRUE(target.FencesStand()) << "Decode wrote outside";
    return target.Bytes();
  }

  // Encodes and decodes like the reference, aligned and not. Returns what was decoded.
  std::vector<float> RoundTrip(const std::vector<float>& elements, size_t offset) const {
    const std::vector<std::byte> encoded =
        ExpectEncodesLikeReference(ElementsOfFloats(elements, dtype_), offset);
    const uint64_t count = elements.size();
    return FloatsOfElements(ExpectDecodesLikeReference(encoded, count, offset).data(), count,
                            dtype_);
  }

  std::vector<std::byte> ExpectEncodesLikeReference(const std::vector<std::byte>& source,
                                                    size_t offset) const {
    const auto want = ReferenceEncode(case_.name, case_.options, source.data(),
                                      source.size() / SizeOf(dtype_), dtype_);
    EXPECT_TRUE(want.ok()) << want.status();
    std::vector<std::byte> encoded = Encode(source, offset);
    EXPECT_EQ(encoded.size() % 32, 0u);
    if (want.ok()) {
      EXPECT_TRUE(SameBytes(encoded, *want));
    }
    return encoded;
  }

  std::vector<std::byte> ExpectDecodesLikeReference(const std::vector<std::byte>& encoded,
                                                    uint64_t count, size_t offset) const {
    const auto want = ReferenceDecode(case_.name, case_.options, encoded, count, dtype_);
    EXPECT_TRUE(want.ok()) << want.status();
    std::vector<std::byte> decoded = Decode(encoded, count, offset);
    if (want.ok()) {
      EXPECT_TRUE(Same(decoded, *want, dtype_));
    }
    return decoded;
  }

 private:
  Case case_;
  DType dtype_;
  std::unique_ptr<Codec> codec_;
};

// What one rounding to `dtype` adds. Units: of the magnitude; and at least.
ErrorBound RoundingOf(DType dtype) {
  if (dtype == DType::kFloat16) return {0x1p-11 * 1.01, 0x1p-25};
  if (dtype == DType::kBFloat16) return {0x1p-8 * 1.01, 0x1p-134};
  return {0x1p-21, 0x1p-149};
}

void ExpectWithinBound(const Subject& subject, DType dtype, const TestTensor& tensor,
                       const std::vector<float>& decoded) {
  const std::vector<std::byte> source = ElementsOfFloats(tensor.elements, dtype);
  const std::vector<float> x = FloatsOfElements(source.data(), tensor.elements.size(), dtype);
  double largest = 0;
  for (const float element : x) largest = std::max<double>(largest, std::fabs(element));
  const ErrorBound bound = subject.codec().Bound();
  const ErrorBound rounding = RoundingOf(dtype);
  const double most =
      (bound.of_largest + rounding.of_largest) * largest + bound.absolute + rounding.absolute;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(std::fabs(static_cast<double>(decoded[i]) - x[i]), most)
        << "element " << i << " was " << x[i] << ", is " << decoded[i];
  }
}

void ExpectConforms(const Case& which, DType dtype, uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << Text(which) << " of " << dtype << ", seed " << seed);
  const Subject subject(which, dtype);
  if (!subject.codec().Takes(dtype)) return;
  std::mt19937_64 random(seed);
  for (const uint64_t count : kCounts) {
    if (count > kMaxCount) break;
    for (const TestTensor& tensor : TestTensors(count, random)) {
      const size_t offset = random() % 3 == 0 ? random() % 9 : 0;
      SCOPED_TRACE(::testing::Message()
                   << tensor.kind << ", count " << count << ", offset " << offset);
      const std::vector<float> decoded = subject.RoundTrip(tensor.elements, offset);
      if (tensor.is_finite) ExpectWithinBound(subject, dtype, tensor, decoded);
      if (::testing::Test::HasFailure()) return;  // the first says enough
    }
  }
}

class CodecTest : public ::testing::TestWithParam<Case> {};

void PrintTo(const Case& which, std::ostream* os) { *os << Text(which); }

TEST_P(CodecTest, IsBitwiseTheReferenceWithinItsBound) {
  for (const DType dtype : kDTypes) ExpectConforms(GetParam(), dtype, 20261121);
}

TEST_P(CodecTest, IsTheSameOnEveryInstructionSet) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      ExpectConforms(GetParam(), dtype, 7);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST_P(CodecTest, ShowsWhatIsNotFinite) {
  std::mt19937_64 random(11);
  for (const DType dtype : kDTypes) {
    const Subject subject(GetParam(), dtype);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<float> elements(1 + random() % 5000, 0.25f);
        elements[random() % elements.size()] = bad;
        const std::vector<float> decoded = subject.RoundTrip(elements, 0);
        bool is_finite = true;
        for (const float x : decoded) is_finite = is_finite && std::isfinite(x);
        EXPECT_FALSE(is_finite) << bad << " among " << elements.size() << " of " << dtype;
      }
    }
  }
}

TEST_P(CodecTest, DecodesAnyBytes) {
  const uint64_t seed = 20261122;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const DType dtype : kDTypes) {
    const Subject subject(GetParam(), dtype);
    for (int repeat = 0; repeat < 100; ++repeat) {
      const uint64_t count = random() % 5000;
      std::vector<std::byte> encoded(subject.codec().EncodedBytes(count, dtype));
      for (std::byte& byte : encoded) byte = static_cast<std::byte>(random());
      subject.ExpectDecodesLikeReference(encoded, count, random() % 9);
    }
  }
}

TEST_P(CodecTest, SaysItsSizeBeyond32Bits) {
  const Subject subject(GetParam(), DType::kFloat32);
  uint64_t previous = 0;
  for (const uint64_t count : {uint64_t{1} << 31, uint64_t{1} << 32, (uint64_t{1} << 33) + 5}) {
    const uint64_t bytes = subject.codec().EncodedBytes(count, DType::kFloat32);
    EXPECT_EQ(bytes % 32, 0u);
    EXPECT_GT(bytes, previous);
    // Linear, but for headers, padding and wider indices.
    const double of_a_million = subject.codec().EncodedBytes(1 << 20, DType::kFloat32);
    EXPECT_GE(bytes, count * (of_a_million / 0x1p20) * 0.99);  // headers weigh less and less
    previous = bytes;
  }
}

TEST_P(CodecTest, RefusesAnOptionItDoesNotKnow) {
  const auto codec = MakeCodec(GetParam().name, {{"no_such_option", "1"}});
  ASSERT_EQ(codec.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(codec.status().message().find("no_such_option"), std::string::npos) << codec.status();
  EXPECT_NE(codec.status().message().find(GetParam().name), std::string::npos) << codec.status();
}

TEST_P(CodecTest, TakesFloatingPointOnly) {
  const Subject subject(GetParam(), DType::kFloat32);
  for (const DType dtype : kDTypes) EXPECT_TRUE(subject.codec().Takes(dtype)) << dtype;
  for (const DType dtype : {DType::kInt32, DType::kUInt8, DType::kBool, DType::kComplex64}) {
    EXPECT_FALSE(subject.codec().Takes(dtype)) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, CodecTest, ::testing::ValuesIn(Cases()),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           std::string text;
                           for (const char c : Text(info.param)) {
                             text += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return text;
                         });

// Signalling ones, too, which a tensor can hold and no conversion makes. Not top_k: it orders NaN
// by payloads, which the processor's conversion from float16 changes.
TEST(NanTest, IsEncodedAsTheReferenceDoes) {
  const uint64_t seed = 20261123;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const Case& which : Cases()) {
    if (which.name == "top_k") continue;
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(::testing::Message() << Text(which) << " of " << dtype);
      const Subject subject(which, dtype);
      for (int repeat = 0; repeat < 50; ++repeat) {
        std::vector<std::byte> source(random() % 5000 * SizeOf(dtype));
        for (std::byte& byte : source) byte = static_cast<std::byte>(random());
        subject.ExpectEncodesLikeReference(source, random() % 9);
      }
    }
  }
}

TEST(CodecRegistryTest, ListsWhatThereIsForAnUnknownName) {
  const auto codec = MakeCodec("no_such_codec", {});
  ASSERT_EQ(codec.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(codec.status().message().find("min_max_uint8"), std::string::npos) << codec.status();
}

}  // namespace
}  // namespace pelton::codec
