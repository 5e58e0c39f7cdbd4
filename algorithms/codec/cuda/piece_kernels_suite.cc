// The functions of piece_kernels.h against the CPU's code, byte by byte.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/codec/codec.h"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "algorithms/codec/cuda/piece_kernels_fixture.h"
#include "algorithms/codec/reference.h"
#include "algorithms/codec/test_tensors.h"
#include "algorithms/stage/piece_codec.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"

namespace pelton::codec {
namespace {

using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};
// Around the parts, the pieces and the vectors that a thread reads.
constexpr uint64_t kCounts[] = {0, 1, 31, 33, 16383, 16384, 16385, 100003};
constexpr uint64_t kSeed = 20261123;
constexpr uint64_t kGuardBytes = 64;
constexpr std::byte kUntouched{0xA5};
constexpr int kInvalidValue = 1;

int32_t Number(DType dtype) { return static_cast<int32_t>(dtype); }

// Device memory at a multiple of 64, between guards; untouched at first. Threads: one. Owns: it.
class DeviceBytes {
 public:
  explicit DeviceBytes(uint64_t size_bytes) : size_bytes_(size_bytes) {
    EXPECT_EQ(DeviceUnderTest().allocate(&memory_, size_bytes + 3 * kGuardBytes), 0);
    const uint64_t over = reinterpret_cast<uintptr_t>(memory_) % kGuardBytes;
    guard_ = static_cast<std::byte*>(memory_) + (over == 0 ? 0 : kGuardBytes - over);
    const Bytes untouched(size_bytes + 2 * kGuardBytes, kUntouched);
    EXPECT_EQ(DeviceUnderTest().copy(guard_, untouched.data(), untouched.size()), 0);
  }
  ~DeviceBytes() { DeviceUnderTest().release(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  std::byte* at(uint64_t offset) { return guard_ + kGuardBytes + offset; }
  void Put(uint64_t offset, const Bytes& bytes) {
    EXPECT_LE(offset + bytes.size(), size_bytes_);
    if (bytes.empty()) return;
    EXPECT_EQ(DeviceUnderTest().copy(at(offset), bytes.data(), bytes.size()), 0);
  }
  // All of it, when the stream has come so far; the guards must be as they were.
  Bytes Get() {
    Bytes all(size_bytes_ + 2 * kGuardBytes);
    EXPECT_EQ(DeviceUnderTest().synchronize(), 0);
    EXPECT_EQ(DeviceUnderTest().copy(all.data(), guard_, all.size()), 0);
    const Bytes guard(kGuardBytes, kUntouched);
    EXPECT_EQ(std::memcmp(all.data(), guard.data(), kGuardBytes), 0) << "written before it";
    EXPECT_EQ(std::memcmp(all.data() + all.size() - kGuardBytes, guard.data(), kGuardBytes), 0)
        << "written behind it";
    return Bytes(all.begin() + kGuardBytes, all.end() - kGuardBytes);
  }

 private:
  const uint64_t size_bytes_;
  void* memory_ = nullptr;
  std::byte* guard_ = nullptr;
};

// A message of the CPU's, at a multiple of 32. Threads: one. Owns: it.
class Message {
 public:
  explicit Message(uint64_t size_bytes) : parts_(size_bytes / sizeof(Part)) {}
  std::byte* data() { return parts_.empty() ? nullptr : parts_[0].bytes; }
  Bytes ToBytes() { return Bytes(data(), data() + parts_.size() * sizeof(Part)); }

 private:
  struct alignas(32) Part {
    std::byte bytes[32];
  };
  std::vector<Part> parts_;
};

std::shared_ptr<const Codec> MinMaxUInt8() { return *MakeCodec("min_max_uint8", {}); }

Bytes Encoded(const Bytes& elements, uint64_t count, DType dtype) {
  PieceCodec pieces(MinMaxUInt8(), dtype);
  Message message(pieces.EncodedBytes(count));
  pieces.Encode(elements.data(), count, nullptr, message.data());
  return message.ToBytes();
}

Bytes Merged(const std::vector<Bytes>& versions, uint64_t count, DType dtype, uint64_t divisor) {
  const std::shared_ptr<const Codec> codec = MinMaxUInt8();
  const PieceCodec pieces(codec, dtype);
  PieceSum sum(dtype, PieceCodec::kPieceCount);
  Message merged(pieces.EncodedBytes(count));
  pieces.ForEachPiece(count, [&](uint64_t, uint64_t piece_count, uint64_t encoded_begin) {
    sum.Begin(piece_count);
    for (const Bytes& version : versions) {
      Message piece(codec->EncodedBytes(piece_count, dtype));
      std::memcpy(piece.data(), version.data() + encoded_begin, piece.ToBytes().size());
      codec->Decode(piece.data(), piece_count, dtype, sum.next());
      sum.Add();
    }
    codec->Encode(sum.Finish(divisor), piece_count, dtype, merged.data() + encoded_begin);
  });
  return merged.ToBytes();
}

// NaNs need not have the same payload.
void ExpectSameElements(const Bytes& got, const Bytes& want, DType dtype) {
  ASSERT_EQ(got.size(), want.size());
  const uint64_t element_bytes = SizeOf(dtype);
  for (uint64_t i = 0; i < got.size(); i += element_bytes) {
    if (std::memcmp(&got[i], &want[i], element_bytes) == 0) continue;
    const float a = FloatsOfElements(&got[i], 1, dtype)[0];
    const float b = FloatsOfElements(&want[i], 1, dtype)[0];
    EXPECT_TRUE(std::isnan(a) && std::isnan(b)) << i / element_bytes << ": " << a << ", not " << b;
  }
}

// Calls f(tensor, dtype, offset) with each kind of tensor, half of them not aligned to vectors.
template <typename F>
void ForEachTensor(F f) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (const uint64_t count : kCounts) {
    for (const TestTensor& tensor : TestTensors(count, random)) {
      for (const DType dtype : kDTypes) {
        SCOPED_TRACE(::testing::Message() << count << " of " << dtype << ", " << tensor.kind);
        f(ElementsOfFloats(tensor.elements, dtype), count, dtype, random() % 2 * SizeOf(dtype));
      }
    }
  }
}

TEST(PieceKernelsTest, AreOfTheVersionOfTheHeader) {
  EXPECT_EQ(DeviceUnderTest().kernels.version(), PELTON_KERNELS_VERSION);
}

TEST(PieceKernelsTest, EncodeToTheBytesOfTheCpu) {
  ForEachTensor([](const Bytes& elements, uint64_t count, DType dtype, uint64_t offset) {
    const Bytes want = Encoded(elements, count, dtype);
    DeviceBytes source(offset + elements.size());
    source.Put(offset, elements);
    DeviceBytes encoded(want.size());
    ASSERT_EQ(DeviceUnderTest().kernels.encode_pieces(source.at(offset), count, Number(dtype),
                                                      encoded.at(0), nullptr),
              0);
    EXPECT_TRUE(encoded.Get() == want);
  });
}

TEST(PieceKernelsTest, DecodeToTheElementsOfTheCpu) {
  ForEachTensor([](const Bytes& elements, uint64_t count, DType dtype, uint64_t offset) {
    const Bytes bytes = Encoded(elements, count, dtype);
    Message message(bytes.size());
    if (!bytes.empty()) std::memcpy(message.data(), bytes.data(), bytes.size());
    Bytes want(elements.size());
    PieceCodec(MinMaxUInt8(), dtype).Decode(message.data(), count, want.data());
    DeviceBytes encoded(bytes.size());
    encoded.Put(0, bytes);
    DeviceBytes target(offset + elements.size());
    ASSERT_EQ(DeviceUnderTest().kernels.decode_pieces(encoded.at(0), count, Number(dtype),
                                                      target.at(offset), nullptr),
              0);
    const Bytes got = target.Get();
    EXPECT_TRUE(Bytes(got.begin(), got.begin() + offset) == Bytes(offset, kUntouched));
    ExpectSameElements(Bytes(got.begin() + offset, got.end()), want, dtype);
  });
}

// What a merge is given. Threads: a value. Owns: its bytes.
struct Versions {
  std::vector<Bytes> encoded;
  uint64_t count;
  DType dtype;
  uint64_t gap_bytes;  // between one and the next
};

void ExpectMergedAsByCpu(const Versions& versions, uint64_t divisor) {
  const Bytes want = Merged(versions.encoded, versions.count, versions.dtype, divisor);
  const uint64_t stride_bytes = want.size() + versions.gap_bytes;
  const auto ranks = static_cast<int32_t>(versions.encoded.size());
  DeviceBytes memory(versions.encoded.size() * stride_bytes);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    memory.Put(static_cast<uint64_t>(rank) * stride_bytes, versions.encoded[rank]);
  }
  DeviceBytes merged(want.size());
  const PeltonMessages messages = {memory.at(0), stride_bytes, ranks};
  ASSERT_EQ(DeviceUnderTest().kernels.merge_pieces(
                &messages, versions.count, Number(versions.dtype), divisor, merged.at(0), nullptr),
            0);
  EXPECT_TRUE(merged.Get() == want) << ranks << " versions, divided by " << divisor;
}

TEST(PieceKernelsTest, MergeAnyNumberOfVersionsAsTheCpu) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (const uint64_t count : kCounts) {
    const std::vector<TestTensor> tensors = TestTensors(count, random);
    for (const DType dtype : kDTypes) {
      SCOPED_TRACE(::testing::Message() << count << " of " << dtype);
      Versions versions = {{}, count, dtype, 0};
      while (versions.encoded.size() < 5) {
        const TestTensor& tensor = tensors[random() % 12];  // the finite ones come first
        const Bytes elements = ElementsOfFloats(tensor.elements, dtype);
        versions.encoded.push_back(Encoded(elements, count, dtype));
        versions.gap_bytes = 32 * (random() % 3);
        for (const uint64_t divisor : {1, 3, 4}) ExpectMergedAsByCpu(versions, divisor);
      }
    }
  }
}

TEST(PieceKernelsTest, MergeEveryKindOfTensorAsTheCpu) {
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  for (const uint64_t count : {uint64_t{33}, uint64_t{16385}}) {
    const std::vector<TestTensor> tensors = TestTensors(count, random);
    const std::vector<float> other = TestTensors(count, random)[0].elements;
    for (const TestTensor& tensor : tensors) {
      for (const DType dtype : kDTypes) {
        SCOPED_TRACE(::testing::Message() << count << " of " << dtype << ", " << tensor.kind);
        const Bytes encoded = Encoded(ElementsOfFloats(tensor.elements, dtype), count, dtype);
        const Bytes plain = Encoded(ElementsOfFloats(other, dtype), count, dtype);
        ExpectMergedAsByCpu({{encoded, encoded}, count, dtype, 0}, 1);
        ExpectMergedAsByCpu({{encoded, plain, encoded}, count, dtype, 32}, 3);
      }
    }
  }
}

TEST(PieceKernelsTest, RefuseWhatIsNoFloatingPointType) {
  const PieceDevice& device = DeviceUnderTest();
  DeviceBytes memory(96);
  const PeltonMessages messages = {memory.at(0), 32, 1};
  for (const int32_t dtype : {Number(DType::kInt32), Number(DType::kComplex128), 12, 256, -1}) {
    for (const uint64_t count : {0, 1}) {
      EXPECT_EQ(device.kernels.encode_pieces(memory.at(0), count, dtype, memory.at(32), nullptr),
                kInvalidValue);
      EXPECT_EQ(device.kernels.decode_pieces(memory.at(32), count, dtype, memory.at(0), nullptr),
                kInvalidValue);
      EXPECT_EQ(device.kernels.merge_pieces(&messages, count, dtype, 1, memory.at(32), nullptr),
                kInvalidValue);
    }
  }
  EXPECT_TRUE(memory.Get() == Bytes(96, kUntouched));
}

TEST(PieceKernelsTest, RefuseToMergeNothingAndToDivideByNothing) {
  const PieceDevice& device = DeviceUnderTest();
  DeviceBytes memory(128);
  const int32_t dtype = Number(DType::kFloat32);
  const PeltonMessages none = {memory.at(0), 64, 0};
  const PeltonMessages one = {memory.at(0), 64, 1};
  EXPECT_EQ(device.kernels.merge_pieces(&none, 1, dtype, 1, memory.at(64), nullptr), kInvalidValue);
  EXPECT_EQ(device.kernels.merge_pieces(&one, 1, dtype, 0, memory.at(64), nullptr), kInvalidValue);
}

}  // namespace
}  // namespace pelton::codec
