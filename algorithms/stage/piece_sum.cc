#include "algorithms/stage/piece_sum.h"

#include "algorithms/codec/convert.h"
#include "comm/reduction/reduction.h"
#include "core/base/check.h"

namespace pelton {
namespace {

DType SumDType(DType dtype) { return SizeOf(dtype) == 2 ? DType::kFloat32 : dtype; }

}  // namespace

PieceSum::PieceSum(DType dtype, uint64_t largest_count)
    : dtype_(dtype),
      sum_dtype_(SumDType(dtype)),
      sum_(largest_count * SizeOf(sum_dtype_)),
      version_(largest_count * SizeOf(dtype)) {
  if (is_narrow()) wide_.resize(sum_.size());
}

void PieceSum::Begin(uint64_t count) {
  PELTON_CHECK(count * SizeOf(dtype_) <= version_.size()) << count;
  count_ = count;
  is_first_ = true;
}

std::byte* PieceSum::next() { return is_first_ && !is_narrow() ? sum_.data() : version_.data(); }

void PieceSum::Add() {
  const bool is_first = is_first_;
  is_first_ = false;
  if (is_narrow()) {
    std::byte* const wide = is_first ? sum_.data() : wide_.data();
    codec::FloatsFrom(version_.data(), count_, dtype_, reinterpret_cast<float*>(wide));
  }
  if (is_first) return;
  std::byte* const sum = sum_.data();
  const std::byte* const terms[] = {sum, is_narrow() ? wide_.data() : version_.data()};
  Reduce(terms, {&sum, 1}, count_, sum_dtype_, ReduceOp::kSum);
}

const std::byte* PieceSum::FinishWide(uint64_t divisor) {
  std::byte* const sum = sum_.data();
  if (divisor != 1) {
    const std::byte* const terms[] = {sum};
    ReduceToMean(terms, {&sum, 1}, count_, sum_dtype_, divisor);
  }
  return sum;
}

const std::byte* PieceSum::Finish(uint64_t divisor) {
  const std::byte* const sum = FinishWide(divisor);
  if (!is_narrow()) return sum;
  codec::FloatsTo(reinterpret_cast<const float*>(sum), count_, dtype_, version_.data());
  return version_.data();
}

}  // namespace pelton
