#include "comm/transport/conformance/exchange.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "comm/reduction/half.h"
#include "comm/reduction/reference.h"
#include "core/base/check.h"

namespace pelton::conformance {
namespace {

using Bytes = std::vector<std::byte>;

// Small and large magnitudes of both signs, and now and then what breaks careless kernels.
double RandomReal(std::mt19937_64& random) {
  const uint64_t bits = random();
  switch (bits % 64) {
    case 0:
      return std::numeric_limits<double>::quiet_NaN();
    case 1:
      return std::numeric_limits<double>::infinity();
    case 2:
      return -0.0;
    case 3:
      return 1e-6;  // a denormal float16
    default:
      return std::ldexp(static_cast<double>(static_cast<int64_t>(bits)), -60);  // [-8, 8)
  }
}

template <typename T>
void Store(T value, std::byte* at) {
  std::memcpy(at, &value, sizeof(value));
}

// A small whole number: 1 or 2 for a product, a multiple of the ranks' number for a mean. A sum
// over 64 ranks or a mean over 8 is then not rounded, in whatever order and precision it is made.
double AnyOrderReal(const ExchangeSpec& spec, size_t rank_count, std::mt19937_64& random) {
  if (spec.op == ReduceOp::kProduct) return random() % 16 == 0 ? 2 : 1;
  const double factor = spec.op == ReduceOp::kAvg ? static_cast<double>(rank_count) : 1;
  return static_cast<double>(random() % 4) * factor;
}

bool IsFloating(DType dtype) { return IsFloatingPoint(dtype); }

template <typename Real, typename Imaginary>
void StoreReal(DType dtype, Real real, Imaginary imaginary, std::byte* at) {
  switch (dtype) {
    case DType::kFloat32:
      return Store(static_cast<float>(real()), at);
    case DType::kFloat64:
      return Store(real(), at);
    case DType::kFloat16:
      return Store(Float16FromFloat(static_cast<float>(real())), at);
    case DType::kBFloat16:
      return Store(BFloat16FromFloat(static_cast<float>(real())), at);
    case DType::kComplex64:
      Store(static_cast<float>(real()), at);
      return Store(static_cast<float>(imaginary()), at + 4);
    default:
      Store(real(), at);
      return Store(imaginary(), at + 8);
  }
}

void StoreRandom(DType dtype, std::mt19937_64& random, std::byte* at) {
  const auto real = [&] { return RandomReal(random); };
  if (IsFloating(dtype)) return StoreReal(dtype, real, real, at);
  if (dtype == DType::kBool) return Store(static_cast<uint8_t>(random() & 1), at);
  const uint64_t bits = random();
  std::memcpy(at, &bits, SizeOf(dtype));
}

Bytes RandomElements(const ExchangeSpec& spec, size_t rank_count, uint64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t size = SizeOf(spec.dtype);
  const bool any_order = spec.any_order && IsReduction(spec.kind) && IsFloating(spec.dtype);
  const auto real = [&] { return AnyOrderReal(spec, rank_count, random); };
  // Products of other numbers are zeros whose sign depends on the order.
  const auto imaginary = [&] { return spec.op == ReduceOp::kProduct ? 0.0 : real(); };
  Bytes bytes(count * size);
  for (std::byte* at = bytes.data(); at != bytes.data() + bytes.size(); at += size) {
    any_order ? StoreReal(spec.dtype, real, imaginary, at) : StoreRandom(spec.dtype, random, at);
  }
  return bytes;
}

Bytes Slice(const Bytes& bytes, size_t index, size_t size_bytes) {
  const auto begin = bytes.begin() + static_cast<ptrdiff_t>(index * size_bytes);
  return Bytes(begin, begin + static_cast<ptrdiff_t>(size_bytes));
}

void Append(Bytes& bytes, const Bytes& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

Bytes ReduceAll(const Exchange& exchange) {
  std::vector<const std::byte*> sources;
  for (const Bytes& input : exchange.inputs) sources.push_back(input.data());
  Bytes target(exchange.inputs[0].size());
  const uint64_t count = target.size() / SizeOf(exchange.spec.dtype);
  PELTON_CHECK_OK(
      ReferenceReduce(sources, target.data(), count, exchange.spec.dtype, exchange.spec.op));
  return target;
}

Bytes Concatenated(const Exchange& exchange) {
  Bytes all;
  for (const Bytes& input : exchange.inputs) Append(all, input);
  return all;
}

uint64_t ChunksOfSource(const ExchangeSpec& spec, size_t rank, size_t n) {
  switch (spec.kind) {
    case OperationKind::kReduceScatter:
    case OperationKind::kAllToAll:
      return n;
    case OperationKind::kScatter:
      return rank == static_cast<size_t>(spec.root) ? n : 0;
    default:
      return 1;
  }
}

// The result on `rank` of the kinds that do not reduce.
Bytes Moved(const Exchange& exchange, size_t rank) {
  const ExchangeSpec& spec = exchange.spec;
  const size_t n = exchange.inputs.size();
  const size_t chunk_bytes = spec.count * SizeOf(spec.dtype);
  const auto root = static_cast<size_t>(spec.root);
  switch (spec.kind) {
    case OperationKind::kAllGather:
      return Concatenated(exchange);
    case OperationKind::kGather:
      return rank == root ? Concatenated(exchange) : Bytes();
    case OperationKind::kBroadcast:
      return exchange.inputs[root];
    case OperationKind::kScatter:
      return Slice(exchange.inputs[root], rank, chunk_bytes);
    case OperationKind::kAllToAll: {
      Bytes all;
      for (const Bytes& input : exchange.inputs) Append(all, Slice(input, rank, chunk_bytes));
      return all;
    }
    case OperationKind::kSend:
      return exchange.inputs[(rank + n - static_cast<size_t>(spec.step)) % n];
    default:
      PELTON_CHECK(false) << NameOf(spec.kind);
      return {};
  }
}

void ExpectReduction(Exchange& exchange) {
  const Bytes reduced = ReduceAll(exchange);
  const size_t chunk_bytes = exchange.spec.count * SizeOf(exchange.spec.dtype);
  for (size_t rank = 0; rank < exchange.inputs.size(); ++rank) {
    const bool is_root = rank == static_cast<size_t>(exchange.spec.root);
    if (exchange.spec.kind == OperationKind::kReduceScatter) {
      exchange.expected.push_back(Slice(reduced, rank, chunk_bytes));
    } else if (exchange.spec.kind == OperationKind::kReduce && !is_root) {
      exchange.expected.emplace_back();
    } else {
      exchange.expected.push_back(reduced);
    }
  }
}

template <typename T, typename IsNan>
std::string Compare(const std::vector<std::byte>& expected, const std::byte* actual, IsNan is_nan) {
  for (size_t offset = 0; offset < expected.size(); offset += sizeof(T)) {
    T wanted, found;
    std::memcpy(&wanted, expected.data() + offset, sizeof(T));
    std::memcpy(&found, actual + offset, sizeof(T));
    if (wanted == found || (is_nan(wanted) && is_nan(found))) continue;
    return absl::StrCat("part ", offset / sizeof(T), " of ", expected.size() / sizeof(T),
                        " should have the bits 0x", absl::Hex(wanted), " and has 0x",
                        absl::Hex(found));
  }
  return "";
}

}  // namespace

std::string Describe(const ExchangeSpec& spec) {
  return absl::StrCat(
      NameOf(spec.kind), " of ", spec.count, " ", NameOf(spec.dtype), ", ", NameOf(spec.op),
      ", root ", spec.root, ", step ", spec.step, spec.in_place ? ", in place" : "", ", placement ",
      static_cast<int>(spec.placement), ", offset ", spec.offset_count, ", seed ", spec.seed);
}

Exchange MakeExchange(const ExchangeSpec& spec, WorldSize world_size) {
  Exchange exchange{spec, world_size, {}, {}};
  const auto n = static_cast<size_t>(world_size.value());
  for (size_t rank = 0; rank < n; ++rank) {
    const uint64_t count = spec.count * ChunksOfSource(spec, rank, n);
    exchange.inputs.push_back(RandomElements(spec, n, count, spec.seed * 1000003 + rank));
  }
  if (IsReduction(spec.kind)) {
    ExpectReduction(exchange);
  } else {
    for (size_t rank = 0; rank < n; ++rank) exchange.expected.push_back(Moved(exchange, rank));
  }
  return exchange;
}

std::string DifferenceOfElements(DType dtype, const std::vector<std::byte>& expected,
                                 const std::byte* actual) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      return Compare<uint32_t>(
          expected, actual, [](uint32_t bits) { return std::isnan(std::bit_cast<float>(bits)); });
    case DType::kFloat64:
    case DType::kComplex128:
      return Compare<uint64_t>(
          expected, actual, [](uint64_t bits) { return std::isnan(std::bit_cast<double>(bits)); });
    case DType::kFloat16:
      return Compare<uint16_t>(expected, actual,
                               [](uint16_t bits) { return std::isnan(FloatFromFloat16(bits)); });
    case DType::kBFloat16:
      return Compare<uint16_t>(expected, actual,
                               [](uint16_t bits) { return std::isnan(FloatFromBFloat16(bits)); });
    default:
      return Compare<uint8_t>(expected, actual, [](uint8_t) { return false; });
  }
}

const std::vector<OperationKind>& DataKinds() {
  static const std::vector<OperationKind>* const kinds = new std::vector<OperationKind>{
      OperationKind::kAllReduce, OperationKind::kReduce,    OperationKind::kReduceScatter,
      OperationKind::kAllGather, OperationKind::kBroadcast, OperationKind::kGather,
      OperationKind::kScatter,   OperationKind::kAllToAll,  OperationKind::kSend};
  return *kinds;
}

bool IsReduction(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kReduceScatter;
}

std::vector<ReduceOp> OpsOf(DType dtype) {
  std::vector<ReduceOp> ops;
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                      ReduceOp::kBitOr, ReduceOp::kBitAnd, ReduceOp::kBitXor, ReduceOp::kAvg}) {
    if (CheckReducible(dtype, op).ok()) ops.push_back(op);
  }
  return ops;
}

bool HasInPlaceForm(OperationKind kind) {
  return IsReduction(kind) || kind == OperationKind::kAllGather;
}

}  // namespace pelton::conformance
