#include "algorithms/stage/power_sgd_stage.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/codec/convert.h"
#include "comm/scratch.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {
namespace {

// Element i is added in part i % kParts, and the parts in halves: an order that vectors of every
// width can keep.
constexpr uint64_t kParts = 16;

template <typename Sum, typename T>
Sum DotInParts(const T* __restrict a, const T* __restrict b, uint64_t count) {
  Sum parts[kParts] = {};
  uint64_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    for (uint64_t p = 0; p < kParts; ++p) {
      parts[p] += static_cast<Sum>(a[i + p]) * static_cast<Sum>(b[i + p]);
    }
  }
  for (uint64_t p = 0; i + p < count; ++p) {
    parts[p] += static_cast<Sum>(a[i + p]) * static_cast<Sum>(b[i + p]);
  }
  for (uint64_t half = kParts / 2; half > 0; half /= 2) {
    for (uint64_t p = 0; p < half; ++p) parts[p] += parts[p + half];
  }
  return parts[0];
}

template <typename T>
void AddScaled(const T* __restrict from, T factor, uint64_t count, T* __restrict to) {
  for (uint64_t i = 0; i < count; ++i) to[i] += from[i] * factor;
}

template <typename T>
void Scale(double factor, uint64_t count, T* values) {
  for (uint64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<double>(values[i]) * factor);
  }
}

// Within -1 and 1.
double Random(uint64_t number) {
  return static_cast<double>(static_cast<int64_t>(SplitMix(0, number - 1))) * 0x1p-63;
}

}  // namespace

template <typename T>
double WideDot(const T* a, const T* b, uint64_t count) {
  return DotInParts<double>(a, b, count);
}

template <typename T>
void MultiplyRow(const T* elements, Vectors<T> factors, uint64_t row, Vectors<T> products) {
  for (uint64_t k = 0; k < factors.rank; ++k) {
    products[k][row] = DotInParts<T>(elements, factors[k], factors.count);
  }
}

template <typename T>
void AddWeightedRows(const T* rows, uint64_t first_row, uint64_t row_count, Vectors<T> factors,
                     Vectors<T> sums) {
  const uint64_t columns = sums.count;
  for (uint64_t k = 0; k < sums.rank; ++k) {
    const T* const factor = factors[k] + first_row;
    uint64_t i = 0;
    for (; i + 4 <= row_count; i += 4) {  // four at a time: a quarter of the traffic on the sums
      const T* __restrict const at = rows + i * columns;
      T* __restrict const sum = sums[k];
      for (uint64_t j = 0; j < columns; ++j) {
        sum[j] = (((sum[j] + at[j] * factor[i]) + at[columns + j] * factor[i + 1]) +
                  at[2 * columns + j] * factor[i + 2]) +
                 at[3 * columns + j] * factor[i + 3];
      }
    }
    for (; i < row_count; ++i) AddScaled(rows + i * columns, factor[i], columns, sums[k]);
  }
}

template <typename T>
void ExpandRow(Vectors<T> left, uint64_t row, Vectors<T> right, T* elements) {
  std::fill_n(elements, right.count, T{0});
  for (uint64_t k = 0; k < right.rank; ++k) {
    AddScaled(right[k], left[k][row], right.count, elements);
  }
}

template <typename T>
void Orthogonalize(Vectors<T> vectors) {
  constexpr double kDependent = 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (uint64_t k = 0; k < vectors.rank; ++k) {
    T* const own = vectors[k];
    const double before = WideDot(own, own, vectors.count);
    for (uint64_t j = 0; j < k; ++j) {
      const double along = WideDot(vectors[j], own, vectors.count);
      AddScaled(vectors[j], static_cast<T>(-along), vectors.count, own);
    }
    const double after = WideDot(own, own, vectors.count);
    // NaN is in neither order: it goes on to be seen.
    const bool depends = after <= kDependent * kDependent * before;
    Scale(depends ? 0 : 1 / std::sqrt(after), vectors.count, own);
  }
}

template <typename T>
void NormalizeOrReplace(Vectors<T> vectors, uint64_t seed) {
  for (uint64_t k = 0; k < vectors.rank; ++k) {
    T* const own = vectors[k];
    double square = WideDot(own, own, vectors.count);
    if (!(square > 0) || !std::isfinite(square)) {
      for (uint64_t i = 0; i < vectors.count; ++i) {
        own[i] = static_cast<T>(Random(seed + k * vectors.count + i));
      }
      square = WideDot(own, own, vectors.count);
    }
    Scale(1 / std::sqrt(square), vectors.count, own);
  }
}

#define PELTON_INSTANTIATE(T)                                                          \
  template double WideDot(const T*, const T*, uint64_t);                               \
  template void MultiplyRow(const T*, Vectors<T>, uint64_t, Vectors<T>);               \
  template void AddWeightedRows(const T*, uint64_t, uint64_t, Vectors<T>, Vectors<T>); \
  template void ExpandRow(Vectors<T>, uint64_t, Vectors<T>, T*);                       \
  template void Orthogonalize(Vectors<T>);                                             \
  template void NormalizeOrReplace(Vectors<T>, uint64_t);
PELTON_INSTANTIATE(float)
PELTON_INSTANTIATE(double)
#undef PELTON_INSTANTIATE

namespace {

// A run of elements of the flat part, and where its share of a message begins. Units: elements.
struct Share {
  uint64_t flat_begin;
  uint64_t count;
  uint64_t message_begin;
};

// Threads: a value. Owns: nothing.
struct Matrix {
  uint64_t flat_begin;
  uint64_t rows;
  uint64_t columns;
  uint64_t left_begin;   // of its factor of vectors of rows, in the first message
  uint64_t right_begin;  // of that of vectors of columns, in the second
  uint64_t seed;         // of the first query
};

// What travels in which message. Threads: a value. Owns: its lists.
struct Contents {
  std::vector<Share> plain;  // tensors as they are
  std::vector<Matrix> matrices;
  // Elements of the two messages, of the type that the stage works in.
  uint64_t first = 0;   // left factors, and tensors that are not compressed
  uint64_t second = 0;  // right factors
};

// The same on all ranks and in all processes: FNV-1a.
uint64_t SeedOf(const std::string& name) {
  uint64_t hash = 14695981039346656037u;
  for (unsigned char byte : name) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

Contents ContentsOf(const Plan& plan, const BucketLayout& layout, const PowerSgdOptions& options) {
  Contents contents;
  uint64_t& first = contents.first;
  uint64_t& second = contents.second;
  const auto add_plain = [&](uint64_t flat_begin, uint64_t count) {
    contents.plain.push_back({flat_begin, count, std::exchange(first, first + count)});
  };
  plan.ForEachFlatSlot(layout, [&](SlotId id, uint64_t begin, uint64_t) {
    const TensorSpec& tensor = plan.tensor(id);
    if (!IsCompressed(tensor, options)) return add_plain(begin, tensor.count);
    const uint64_t rows = tensor.count / tensor.columns;
    contents.matrices.push_back(
        {.flat_begin = begin,
         .rows = rows,
         .columns = tensor.columns,
         .left_begin = std::exchange(first, first + options.rank * rows),
         .right_begin = std::exchange(second, second + options.rank * tensor.columns),
         .seed = SeedOf(tensor.name)});
  });
  return contents;
}

// Works in T: double for float64, else float.
// Threads: as Stage. Owns: the messages.
template <typename T>
class PowerSgdStage final : public Stage {
 public:
  PowerSgdStage(const PowerSgdOptions& options, const BucketLayout& layout, Communicator& ranks)
      : options_(options), dtype_(layout.dtype), ranks_(ranks) {}

  absl::string_view name() const override { return kPowerSgd; }

  std::unique_ptr<StageState> MakeState(const BucketLayout& layout) const override {
    auto state = std::make_unique<FlatState>();
    const uint64_t count = layout.content_count;
    state->Add(
        {.name = kPowerSgdError, .dtype = kWorkDType, .scope = StateScope::kOwn, .count = count});
    state->Add({.name = kPowerSgdQuery,
                .dtype = kWorkDType,
                .scope = StateScope::kCommon,
                .count = count});
    return state;
  }

  absl::Status Start(BucketRun& run, StageState* state) override {
    if (messages_ == nullptr) RETURN_IF_ERROR(Prepare(run));
    batch_.Clear();
    if (static_cast<uint64_t>(run.round().value()) < options_.start_round) {
      step_ = Step::kWhole;
      for (const Segment& segment : run.segments()) {
        batch_.Add(Mean(dtype_, segment.location, segment.count));
      }
      return absl::OkStatus();
    }
    step_ = Step::kLeft;
    for (const Share& share : contents_.plain) {
      Load(run, share.flat_begin, share.count, Message() + share.message_begin);
    }
    for (const Matrix& matrix : contents_.matrices) MakeLeft(run, matrix, *state);
    if (contents_.first == 0) return absl::OkStatus();  // there are no elements
    batch_.Add(Mean(kWorkDType, messages_->At(0), contents_.first));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    ASSIGN_OR_RETURN(const bool done, batch_.Advance(run));
    if (!done) return false;
    if (step_ == Step::kLeft && !contents_.matrices.empty()) {
      for (const Matrix& matrix : contents_.matrices) MakeRight(matrix, *state);
      step_ = Step::kRight;
      batch_.Clear();
      batch_.Add(Mean(kWorkDType, messages_->At(contents_.first * sizeof(T)), contents_.second));
      return Advance(run, state);  // it may be done at once
    }
    if (step_ != Step::kWhole) TakeResults(run, *state);
    return true;
  }

 private:
  static constexpr DType kWorkDType = std::is_same_v<T, double> ? DType::kFloat64 : DType::kFloat32;
  static constexpr uint64_t kRowsAtOnce = 16;
  enum class Step { kWhole, kLeft, kRight };

  absl::Status Prepare(const BucketRun& run) {
    contents_ = ContentsOf(run.plan(), run.layout(), options_);
    uint64_t longest = 0;
    for (const Matrix& matrix : contents_.matrices) longest = std::max(longest, matrix.columns);
    row_.resize(longest);
    const uint64_t count = contents_.first + contents_.second;
    ASSIGN_OR_RETURN(
        messages_,
        Scratch::Create(ranks_, absl::StrCat("factors of bucket ", run.layout().id.value()),
                        std::max<uint64_t>(count, 1) * sizeof(T)));
    return absl::OkStatus();
  }

  T* Message() const { return reinterpret_cast<T*>(messages_->data()); }
  Vectors<T> LeftOf(const Matrix& matrix) const {
    return {Message() + matrix.left_begin, matrix.rows, options_.rank};
  }
  Vectors<T> RightOf(const Matrix& matrix) const {
    return {Message() + contents_.first + matrix.right_begin, matrix.columns, options_.rank};
  }
  T* ErrorOf(const Matrix& matrix, StageState& state) const {
    return reinterpret_cast<T*>(static_cast<FlatState&>(state).data(0)) + matrix.flat_begin;
  }
  Vectors<T> QueryOf(const Matrix& matrix, StageState& state) const {
    T* const data = reinterpret_cast<T*>(static_cast<FlatState&>(state).data(1));
    return {data + matrix.flat_begin, matrix.columns, options_.rank};
  }

  // Elements of the flat part, as T, and back.
  void Load(const BucketRun& run, uint64_t flat_begin, uint64_t count, T* target) const {
    const std::byte* const source = run.flat() + flat_begin * SizeOf(dtype_);
    if constexpr (std::is_same_v<T, float>) {
      codec::FloatsFrom(source, count, dtype_, target);
    } else if (count > 0) {
      std::memcpy(target, source, count * sizeof(T));
    }
  }
  void Store(const BucketRun& run, uint64_t flat_begin, uint64_t count, const T* source) const {
    std::byte* const target = run.flat() + flat_begin * SizeOf(dtype_);
    if constexpr (std::is_same_v<T, float>) {
      codec::FloatsTo(source, count, dtype_, target);
    } else if (count > 0) {
      std::memcpy(target, source, count * sizeof(T));
    }
  }

  Operation Mean(DType dtype, Location location, uint64_t count) const {
    return AllReduceOf(ReduceOp::kAvg, dtype, count, location, ranks_.id());
  }

  void MakeLeft(const BucketRun& run, const Matrix& matrix, StageState& state);
  void MakeRight(const Matrix& matrix, StageState& state);
  void TakeResults(const BucketRun& run, StageState& state);
  void TakeMatrix(const BucketRun& run, const Matrix& matrix, StageState& state);

  const PowerSgdOptions options_;
  const DType dtype_;
  Communicator& ranks_;
  Contents contents_;
  std::unique_ptr<Scratch> messages_;
  std::vector<T> row_;  // the longest row
  Step step_ = Step::kWhole;
  OperationBatch batch_;
};

// The error becomes the matrix M to be sent, and the message its product with the query: each row
// while it is in the cache.
template <typename T>
void PowerSgdStage<T>::MakeLeft(const BucketRun& run, const Matrix& matrix, StageState& state) {
  const Vectors<T> query = QueryOf(matrix, state);
  NormalizeOrReplace(query, matrix.seed);
  T* error = ErrorOf(matrix, state);
  for (uint64_t i = 0; i < matrix.rows; ++i, error += matrix.columns) {
    Load(run, matrix.flat_begin + i * matrix.columns, matrix.columns, row_.data());
    for (uint64_t j = 0; j < matrix.columns; ++j) error[j] += row_[j];
    MultiplyRow<T>(error, query, i, LeftOf(matrix));
  }
}

template <typename T>
void PowerSgdStage<T>::MakeRight(const Matrix& matrix, StageState& state) {
  Orthogonalize(LeftOf(matrix));
  const Vectors<T> right = RightOf(matrix);
  std::fill_n(right.data, right.count * right.rank, T{0});
  for (uint64_t i = 0; i < matrix.rows; i += kRowsAtOnce) {
    AddWeightedRows<T>(ErrorOf(matrix, state) + i * matrix.columns, i,
                       std::min(kRowsAtOnce, matrix.rows - i), LeftOf(matrix), right);
  }
}

template <typename T>
void PowerSgdStage<T>::TakeResults(const BucketRun& run, StageState& state) {
  for (const Share& share : contents_.plain) {
    Store(run, share.flat_begin, share.count, Message() + share.message_begin);
  }
  for (const Matrix& matrix : contents_.matrices) TakeMatrix(run, matrix, state);
}

// The bucket gets the product of the factors, the error the rest of M, 0 where that is not finite:
// an overflow shows in one round and not in all that follow.
template <typename T>
void PowerSgdStage<T>::TakeMatrix(const BucketRun& run, const Matrix& matrix, StageState& state) {
  const Vectors<T> right = RightOf(matrix);
  std::copy_n(right.data, right.count * right.rank, QueryOf(matrix, state).data);
  T* error = ErrorOf(matrix, state);
  for (uint64_t i = 0; i < matrix.rows; ++i, error += matrix.columns) {
    ExpandRow<T>(LeftOf(matrix), i, right, row_.data());
    Store(run, matrix.flat_begin + i * matrix.columns, matrix.columns, row_.data());
    for (uint64_t j = 0; j < matrix.columns; ++j) {
      const T rest = error[j] - row_[j];
      error[j] = rest - rest == 0 ? rest : 0;
    }
  }
}

}  // namespace

bool IsCompressed(const TensorSpec& tensor, const PowerSgdOptions& options) {
  if (tensor.columns == 0 || tensor.count == 0) return false;
  const uint64_t rows = tensor.count / tensor.columns;
  return static_cast<double>(options.rank) * static_cast<double>(rows + tensor.columns) *
             options.min_compression <
         static_cast<double>(tensor.count);
}

std::unique_ptr<Stage> MakePowerSgdStage(const PowerSgdOptions& options, const BucketLayout& layout,
                                         Communicator& ranks) {
  if (layout.dtype == DType::kFloat64) {
    return std::make_unique<PowerSgdStage<double>>(options, layout, ranks);
  }
  return std::make_unique<PowerSgdStage<float>>(options, layout, ranks);
}

}  // namespace pelton
