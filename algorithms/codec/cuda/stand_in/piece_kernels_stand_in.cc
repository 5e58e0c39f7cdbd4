// The functions of piece_kernels.h and mean_kernel.h by the CPU's code, for tests: the device's
// memory is the host's. Work runs in the order of its stream, by cudaLaunchHostFunc of the library
// that PELTON_CUDART_LIBRARY names (comm/transport/nccl/stand_in). A function that
// PELTON_STAND_IN_KERNEL_FAULT names does nothing but fail.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "algorithms/codec/codec.h"
#include "algorithms/codec/convert.h"
#include "algorithms/codec/cuda/piece_kernels.h"
#include "algorithms/stage/piece_codec.h"
#include "comm/reduction/cuda/mean_kernel.h"
#include "comm/reduction/cuda/mean_on_host.h"
#include "core/base/check.h"
#include "core/memory/cuda/shared_library.h"
#include "core/memory/dtype.h"

namespace pelton::codec {
namespace {

static_assert(kGpuPieceCount == PieceCodec::kPieceCount);

// CUDA's.
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kNoDevice = 100;
constexpr int kIllegalAddress = 700;

using Work = std::function<void()>;
using LaunchHostFunction = int (*)(CUstream_st* stream, void (*function)(void*), void* argument);

LaunchHostFunction FindLaunch() {
  const auto library = SharedLibrary::Find({"", {}, "PELTON_CUDART_LIBRARY"});
  if (!library.ok()) return nullptr;
  return reinterpret_cast<LaunchHostFunction>(library->Symbol("cudaLaunchHostFunc"));
}

int Enqueue(CUstream_st* stream, Work work) {
  static const LaunchHostFunction launch = FindLaunch();
  if (launch == nullptr) return kNoDevice;
  auto owned = std::make_unique<Work>(std::move(work));
  const auto run = [](void* argument) {
    const std::unique_ptr<Work> once(static_cast<Work*>(argument));
    (*once)();
  };
  const int result = launch(stream, run, owned.get());
  if (result == kSuccess) owned.release();
  return result;
}

int CheckedCall(const char* function, int32_t dtype) {
  const char* const faulty = std::getenv("PELTON_STAND_IN_KERNEL_FAULT");
  if (faulty != nullptr && std::strcmp(faulty, function) == 0) return kIllegalAddress;
  const bool is_known = dtype >= 0 && dtype < kDTypeCount;
  return is_known && IsConvertible(static_cast<DType>(dtype)) ? kSuccess : kInvalidValue;
}

std::shared_ptr<const Codec> MinMax() {
  auto codec = MakeCodec("min_max_uint8", {});
  PELTON_CHECK(codec.ok()) << codec.status();
  return *std::move(codec);
}

const std::byte* Bytes(const void* memory) { return static_cast<const std::byte*>(memory); }
std::byte* Bytes(void* memory) { return static_cast<std::byte*>(memory); }

std::byte* MessageOf(const PeltonMessages& messages, int32_t rank) {
  return Bytes(messages.first) + static_cast<uint64_t>(rank) * messages.stride_bytes;
}

void Merge(const PeltonMessages& versions, uint64_t count, DType dtype, uint64_t divisor,
           std::byte* encoded) {
  const std::shared_ptr<const Codec> codec = MinMax();
  const PieceCodec pieces(codec, dtype);
  PieceSum sum(dtype, PieceCodec::kPieceCount);
  pieces.ForEachPiece(count, [&](uint64_t, uint64_t piece_count, uint64_t encoded_begin) {
    sum.Begin(piece_count);
    for (int32_t rank = 0; rank < versions.count; ++rank) {
      const std::byte* const version = MessageOf(versions, rank) + encoded_begin;
      codec->Decode(version, piece_count, dtype, sum.next());
      sum.Add();
    }
    codec->Encode(sum.Finish(divisor), piece_count, dtype, encoded + encoded_begin);
  });
}

}  // namespace
}  // namespace pelton::codec

using pelton::DType;
using pelton::PieceCodec;
using pelton::codec::Bytes;
using pelton::codec::CheckedCall;
using pelton::codec::Enqueue;
using pelton::codec::MinMax;

int pelton_kernels_version() { return PELTON_KERNELS_VERSION; }

int pelton_encode_pieces(const void* source, uint64_t count, int32_t dtype, void* encoded,
                         CUstream_st* stream) {
  if (const int error = CheckedCall("pelton_encode_pieces", dtype)) return error;
  return Enqueue(stream, [=] {
    PieceCodec pieces(MinMax(), static_cast<DType>(dtype));
    pieces.Encode(Bytes(source), count, nullptr, Bytes(encoded));
  });
}

int pelton_decode_pieces(const void* encoded, uint64_t count, int32_t dtype, void* target,
                         CUstream_st* stream) {
  if (const int error = CheckedCall("pelton_decode_pieces", dtype)) return error;
  return Enqueue(stream, [=] {
    PieceCodec pieces(MinMax(), static_cast<DType>(dtype));
    pieces.Decode(Bytes(encoded), count, Bytes(target));
  });
}

int pelton_merge_pieces(const PeltonMessages* versions, uint64_t count, int32_t dtype,
                        uint64_t divisor, void* encoded, CUstream_st* stream) {
  if (const int error = CheckedCall("pelton_merge_pieces", dtype)) return error;
  if (versions->count < 1 || divisor < 1) return pelton::codec::kInvalidValue;
  return Enqueue(stream, [=, versions = *versions] {
    pelton::codec::Merge(versions, count, static_cast<DType>(dtype), divisor, Bytes(encoded));
  });
}

int pelton_weighted_mean(const PeltonMean* mean, CUstream_st* stream) {
  if (const int error = CheckedCall("pelton_weighted_mean", mean->dtype)) return error;
  if (!pelton::IsValid(*mean)) return pelton::codec::kInvalidValue;
  return Enqueue(stream, [mean = *mean] { pelton::RunOnHost(mean); });
}
