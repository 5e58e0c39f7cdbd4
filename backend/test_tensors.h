// A trainer's tensors in plain memory, for tests of a model's port.
#ifndef PELTON_BACKEND_TEST_TENSORS_H_
#define PELTON_BACKEND_TEST_TENSORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/round/tensor_port.h"
#include "core/round/trigger.h"

namespace pelton {

inline constexpr uint64_t kCounts[] = {70, 33};
// Elements by tensor.
using Tensors = std::vector<std::vector<float>>;

// A trainer's tensors of float32 in memory of its own.
// Threads: as TensorPort. Owns: the elements.
class PlainTensors final : public TensorPort {
 public:
  explicit PlainTensors(Tensors tensors) : tensors_(std::move(tensors)) {
    places_.resize(tensors_.size());
  }

  Tensors& tensors() { return tensors_; }
  // What the tensors cannot be had for, at the next merge; and the steps of merges so far.
  absl::Status refusal;
  std::vector<std::string> merges;

  absl::Status BeginMerge(absl::Time) override {
    merges.emplace_back("begin");
    return std::exchange(refusal, absl::OkStatus());
  }
  absl::Status EndMerge() override {
    merges.emplace_back("end");
    return absl::OkStatus();
  }
  void Place(SlotId slot, std::byte* memory) override { places_[Index(slot)] = memory; }
  absl::StatusOr<Brought> Bring(SlotId slot, bool is_used) override {
    std::vector<float>& tensor = tensors_[Index(slot)];
    if (!is_used) std::fill(tensor.begin(), tensor.end(), 0.0F);
    std::memcpy(places_[Index(slot)], tensor.data(), tensor.size() * sizeof(float));
    return Brought{places_[Index(slot)], is_used};
  }
  void Merge(SlotId slot, const CommitRule& rule, bool used_by_any) override {
    merges.push_back(absl::StrCat("t", slot.value()));
    if (!used_by_any) return;
    const auto* const result = reinterpret_cast<const float*>(places_[Index(slot)]);
    std::vector<float>& tensor = tensors_[Index(slot)];
    for (size_t i = 0; i < tensor.size(); ++i) {
      volatile float kept = static_cast<float>(rule.kept) * tensor[i];
      volatile float taken = static_cast<float>(rule.taken) * result[i];
      tensor[i] = kept + taken;
    }
  }
  uint64_t Fingerprint() const override {
    double sum = 0;
    for (const std::vector<float>& tensor : tensors_) {
      for (float value : tensor) sum += value;
    }
    uint64_t bits = 0;
    std::memcpy(&bits, &sum, sizeof(bits));
    return bits;
  }

 private:
  static size_t Index(SlotId slot) { return static_cast<size_t>(slot.value()); }

  Tensors tensors_;
  std::vector<std::byte*> places_;
};

// The model that all ranks begin with.
inline Tensors Initial() {
  Tensors tensors;
  for (uint64_t count : kCounts) {
    std::vector<float>& tensor = tensors.emplace_back(count);
    for (size_t i = 0; i < count; ++i) tensor[i] = static_cast<float>(i % 13) * 0.3F - 2;
  }
  return tensors;
}

// What a rank's step of training does to its tensors.
inline void Train(Tensors& tensors, int32_t rank, uint64_t step) {
  for (std::vector<float>& tensor : tensors) {
    for (size_t i = 0; i < tensor.size(); ++i) {
      const size_t number = i + 3 * step + 5 * static_cast<size_t>(rank);
      tensor[i] -= 0.01F * static_cast<float>(number % 7);
    }
  }
}

inline TrainingEvent Event(EventKind kind) {
  TrainingEvent event;
  event.kind = kind;
  return event;
}

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_TENSORS_H_
