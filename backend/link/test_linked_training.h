// A model of five small tensors, and rounds of it in which not every rank uses all of them: for
// tests.
#ifndef PELTON_BACKEND_LINK_TEST_LINKED_TRAINING_H_
#define PELTON_BACKEND_LINK_TEST_LINKED_TRAINING_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "backend/model.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"

namespace pelton {

inline constexpr uint64_t kTrainedCounts[] = {300, 1, 70, 513, 33};

inline std::vector<TensorSpec> TrainedTensors() {
  std::vector<TensorSpec> tensors;
  for (uint64_t count : kTrainedCounts) {
    tensors.push_back({.name = absl::StrCat("t", tensors.size()), .count = count});
  }
  return tensors;
}

// Of a model of them; the group is left out.
inline ModelOptions TrainedModel(const std::string& algorithm,
                                 uint64_t standalone_bytes = PlanOptions::kNoStandalone) {
  ModelOptions options;
  options.name = "net";
  options.algorithm = algorithm;
  options.bucket_size_bytes = 1500;
  options.standalone_bytes = standalone_bytes;
  options.timeout = absl::Seconds(30);
  return options;
}

// Tensor 1 nobody uses, tensor 2 rank 0 alone, the others now and then.
inline bool Uses(int32_t rank, int round, int32_t slot) {
  if (slot == 1) return false;
  if (slot == 2) return rank == 0;
  return (rank + round + slot) % 4 != 0;
}

// Where a rank's standalone tensors lie: every other one in no shared memory. Threads: one. Owns:
// the memory.
class OwnMemory {
 public:
  void* At(int32_t slot) {
    const auto i = static_cast<size_t>(slot);
    if (slot % 2 != 0) return private_[i];
    if (shared_[i] == nullptr) shared_[i] = Region::Create(sizeof(private_[i]), "tensor").value();
    return shared_[i]->data() + 64;  // not at its beginning
  }
  RegionId RegionOf(int32_t slot) { return shared_[static_cast<size_t>(slot)]->id(); }

 private:
  float private_[std::size(kTrainedCounts)][600];
  std::unique_ptr<Region> shared_[std::size(kTrainedCounts)];
};

inline bool IsStandalone(const ModelRounds& rounds, int32_t slot) {
  return rounds.plan().slot(SlotId(slot)).standalone;
}

inline void FillAt(void* data, int32_t slot, int32_t rank, int round) {
  auto* const values = static_cast<float*>(data);
  for (uint64_t i = 0; i < kTrainedCounts[slot]; ++i) {
    const int number = static_cast<int>(i) * 7 + slot + rank * 3;
    values[i] = static_cast<float>(number % 23 - 11) * 0.13F * static_cast<float>(round + 1);
  }
}

inline void Fill(ModelRounds& rounds, int32_t slot, int32_t rank, int round) {
  FillAt(rounds.DataOf(SlotId(slot)), slot, rank, round);
}

// `own`: of standalone tensors; null where the plan has none.
inline absl::Status Produce(ModelRounds& rounds, int32_t rank, int round,
                            OwnMemory* own = nullptr) {
  for (int32_t i = 0; i < static_cast<int32_t>(std::size(kTrainedCounts)); ++i) {
    const auto slot = static_cast<int32_t>((i * 3 + rank) % std::size(kTrainedCounts));
    if (!Uses(rank, round, slot)) continue;
    if (IsStandalone(rounds, slot)) {
      FillAt(own->At(slot), slot, rank, round);
      RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot), own->At(slot)));
      continue;
    }
    Fill(rounds, slot, rank, round);
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  return rounds.EndRound();
}

// What a rank has seen, as text.
using RankLog = std::vector<std::string>;

// Results, what was used and what runs next.
inline void AddResults(ModelRounds& rounds, RankLog& log) {
  for (size_t i = 0; i < std::size(kTrainedCounts); ++i) {
    const SlotResult result = rounds.ResultOf(SlotId(static_cast<int32_t>(i)));
    log.emplace_back(reinterpret_cast<const char*>(result.data), result.size_bytes);
    log.push_back(absl::StrCat("used ", result.used_by_any));
    log.push_back(absl::StrCat("next ", rounds.Communicates(SlotId(static_cast<int32_t>(i)))));
  }
}

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TEST_LINKED_TRAINING_H_
