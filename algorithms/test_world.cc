#include "algorithms/test_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"

namespace pelton {
namespace {

void Write(const std::vector<float>& tensor, std::byte* data) {
  if (!tensor.empty()) std::memcpy(data, tensor.data(), tensor.size() * sizeof(float));
}

}  // namespace

uint64_t TestWorld::BucketBytes() {
  uint64_t bytes = 0;
  for (const BucketLayout& bucket : plan().buckets()) {
    bytes += bucket.flat_count * SizeOf(bucket.dtype);
  }
  return bytes;
}

void TestWorld::Prime(const Values& values) {
  for (int32_t rank = 0; rank < size(); ++rank) {
    for (size_t slot = 0; slot < values.size(); ++slot) {
      Write(values[slot], rounds(rank).DataOf(SlotId(static_cast<int32_t>(slot))));
    }
    PELTON_CHECK_OK(rounds(rank).Prime(absl::InfiniteFuture()));
  }
}

std::vector<Values> TestWorld::Round(const std::vector<Values>& values) {
  PELTON_CHECK_OK(ranks_.RunRound([&](int32_t rank, SlotId slot, std::byte* data) {
    Write(values[static_cast<size_t>(rank)][static_cast<size_t>(slot.value())], data);
    return true;
  }));
  std::vector<Values> results;
  for (int32_t rank = 0; rank < size(); ++rank) results.push_back(ValuesOf(rank));
  return results;
}

Values TestWorld::ValuesOf(int32_t rank) {
  Values values;
  for (size_t slot = 0; slot < tensors_.size(); ++slot) {
    const SlotResult result = rounds(rank).ResultOf(SlotId(static_cast<int32_t>(slot)));
    const auto* const floats = reinterpret_cast<const float*>(result.data);
    values.emplace_back(floats, floats + tensors_[slot].count);
  }
  return values;
}

Values TestWorld::StateOf(int32_t rank, const std::string& key) {
  Values values(tensors_.size());
  const std::vector<SlotState> states = *rounds(rank).SaveStates(absl::InfiniteFuture());
  for (const SlotState& state : states) {
    if (state.key != key) continue;
    const auto slot = static_cast<size_t>(state.slot.value());
    const auto* const floats = reinterpret_cast<const float*>(state.bytes.data());
    // The share ends with the gap behind the tensor.
    const uint64_t count = std::min<uint64_t>(state.bytes.size() / sizeof(float),
                                              tensors_[slot].count - state.begin_count);
    values[slot].assign(floats, floats + count);
  }
  return values;
}

Values TestWorld::Ramp(const std::vector<TensorSpec>& tensors, int32_t rank, uint64_t round) {
  Values values;
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    std::vector<float> elements(tensors[slot].count);
    for (size_t i = 0; i < elements.size(); ++i) {
      const uint64_t mixed = (i * 37 + slot * 11 + static_cast<uint64_t>(rank) * 131) % 97;
      elements[i] =
          (static_cast<float>(mixed) - 41.0F) * 0.37F * (1.0F + static_cast<float>(round) * 0.25F);
    }
    values.push_back(std::move(elements));
  }
  return values;
}

}  // namespace pelton
