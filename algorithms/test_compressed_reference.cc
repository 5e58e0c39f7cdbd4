#include "algorithms/test_compressed_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "algorithms/codec/reference.h"

namespace pelton {
namespace {

// The numbers that stage/compressed_exchange.h and stage/piece_codec.h promise.
constexpr uint64_t kChunkAlignment = 32;
constexpr uint64_t kPiece = 16384;

}  // namespace

CompressedReference::CompressedReference(CompressedReferenceOptions options, uint64_t count)
    : options_(std::move(options)),
      codec_(*MakeCodec(options_.codec, options_.codec_options)),
      count_(count),
      residuals_(options_.part_sizes.size(), Elements(count)),
      server_residual_(count) {}

CompressedReference::Elements CompressedReference::Load(const std::vector<std::byte>& bytes) const {
  Elements elements(bytes.size() / SizeOf(options_.dtype));
  if (options_.dtype == DType::kFloat64) {
    if (!bytes.empty()) std::memcpy(elements.data(), bytes.data(), bytes.size());
    return elements;
  }
  const std::vector<float> floats =
      codec::FloatsOfElements(bytes.data(), elements.size(), options_.dtype);
  std::copy(floats.begin(), floats.end(), elements.begin());
  return elements;
}

std::vector<std::byte> CompressedReference::Store(const Elements& elements) const {
  if (options_.dtype == DType::kFloat64) {
    std::vector<std::byte> bytes(elements.size() * sizeof(double));
    if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
    return bytes;
  }
  return codec::ElementsOfFloats(std::vector<float>(elements.begin(), elements.end()),
                                 options_.dtype);
}

// A float64 sum or quotient of two float32, rounded to float32, is what float32 gives.
double CompressedReference::Rounded(double value) const {
  return options_.dtype == DType::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
}

CompressedReference::Elements CompressedReference::HostSum(
    const std::vector<std::vector<std::byte>>& ranks, size_t first, int32_t size) {
  Elements sum = Load(ranks[first]);
  for (size_t rank = first + 1; rank < first + static_cast<size_t>(size); ++rank) {
    const Elements other = Load(ranks[rank]);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = Rounded(sum[i] + other[i]);
  }
  return options_.average ? sum : Load(Store(sum));
}

CompressedReference::Elements CompressedReference::HostMean(
    const std::vector<std::vector<std::byte>>& ranks, size_t first, int32_t size) {
  Elements mean = HostSum(ranks, first, size);
  if (!options_.average) return mean;
  for (double& each : mean) each = Rounded(each / size);
  mean = Load(Store(mean));
  if (PartsAreEqual()) return mean;
  const double share = Rounded(size * Divisor() / static_cast<double>(ranks.size()));
  for (double& each : mean) each = Rounded(each * share);
  return Load(Store(mean));
}

bool CompressedReference::PartsAreEqual() const {
  const std::vector<int32_t>& sizes = options_.part_sizes;
  return std::equal(sizes.begin() + 1, sizes.end(), sizes.begin());
}

double CompressedReference::Divisor() const {
  const bool is_mean_of_parts = PartsAreEqual() || options_.error_feedback;
  return options_.average && is_mean_of_parts ? static_cast<double>(options_.part_sizes.size()) : 1;
}

CompressedReference::Elements CompressedReference::SentPiece(const Elements& elements) const {
  const std::vector<std::byte> bytes = Store(elements);
  std::vector<std::byte> encoded(codec_->EncodedBytes(elements.size(), options_.dtype));
  codec_->Encode(bytes.data(), elements.size(), options_.dtype, encoded.data());
  std::vector<std::byte> decoded(bytes.size());
  codec_->Decode(encoded.data(), elements.size(), options_.dtype, decoded.data());
  return Load(decoded);
}

CompressedReference::Elements CompressedReference::Sent(Elements elements,
                                                        Elements* residual) const {
  if (residual != nullptr) {
    for (size_t i = 0; i < elements.size(); ++i) {
      elements[i] = Rounded(elements[i] + (*residual)[i]);
    }
  }
  Elements sent;
  for (uint64_t begin = 0; begin < elements.size(); begin += kPiece) {
    const uint64_t end = std::min<uint64_t>(begin + kPiece, elements.size());
    const Elements piece = SentPiece({elements.begin() + static_cast<ptrdiff_t>(begin),
                                      elements.begin() + static_cast<ptrdiff_t>(end)});
    sent.insert(sent.end(), piece.begin(), piece.end());
  }
  if (residual == nullptr) return sent;
  for (size_t i = 0; i < elements.size(); ++i) elements[i] = Rounded(elements[i] - sent[i]);
  *residual = elements;
  for (double& rest : *residual) rest = std::isfinite(rest) ? rest : 0;
  return sent;
}

std::vector<std::byte> CompressedReference::Round(const std::vector<std::vector<std::byte>>& ranks,
                                                  Unused unused) {
  const std::vector<Elements> residuals = residuals_;
  const Elements server_residual = server_residual_;
  const std::vector<std::byte> result = Round(ranks);
  const auto put_back = [&unused](const Elements& from, Elements& to) {
    for (uint64_t i = unused.begin; i < unused.end; ++i) to[i] = from[i];
  };
  for (size_t part = 0; part < residuals.size(); ++part) {
    put_back(residuals[part], residuals_[part]);
  }
  put_back(server_residual, server_residual_);
  return result;
}

std::vector<std::byte> CompressedReference::Round(
    const std::vector<std::vector<std::byte>>& ranks) {
  std::vector<Elements> parts;
  size_t first = 0;
  for (int32_t size : options_.part_sizes) {
    parts.push_back(HostMean(ranks, first, size));
    first += static_cast<size_t>(size);
  }
  const double divisor = Divisor();
  const uint64_t share = (count_ + parts.size() - 1) / parts.size();
  const uint64_t chunk = (share + kChunkAlignment - 1) / kChunkAlignment * kChunkAlignment;
  Elements result;
  for (uint64_t begin = 0; begin < count_; begin += chunk) {
    const auto from = static_cast<ptrdiff_t>(begin);
    const auto to = static_cast<ptrdiff_t>(std::min(begin + chunk, count_));
    // What was sent of this chunk, in rank order, and then the server's answer.
    const auto slice = [&](const Elements& of) {
      return Elements(of.begin() + from, of.begin() + to);
    };
    const auto send = [&](const Elements& elements, Elements& residuals) {
      Elements residual = slice(residuals);
      Elements sent = Sent(elements, options_.error_feedback ? &residual : nullptr);
      std::copy(residual.begin(), residual.end(), residuals.begin() + from);
      return sent;
    };
    Elements sum;
    for (size_t part = 0; part < parts.size(); ++part) {
      const Elements sent = send(slice(parts[part]), residuals_[part]);
      if (part == 0) {
        sum = sent;
        continue;
      }
      for (size_t i = 0; i < sum.size(); ++i) sum[i] = Rounded(sum[i] + sent[i]);
    }
    for (double& each : sum) each = Rounded(each / divisor);
    const Elements answer = send(sum, server_residual_);
    result.insert(result.end(), answer.begin(), answer.end());
  }
  return Store(result);
}

}  // namespace pelton
