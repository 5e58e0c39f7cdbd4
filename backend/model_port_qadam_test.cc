// QAdam through a model's port: Adam on the mean gradients in its warm-up, and then steps whose
// first moments the ranks form of their own gradients and average in encoded messages. Held bit by
// bit against one process that takes the same formula in plain loops, and up to the codec's error
// against the formula in float64 with nothing encoded. Runs with ranks as threads over shared
// memory and, as backend/link:model_port_qadam_sim_test, with trainers and daemons in one thread,
// in the orders that seeds give.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "algorithms/codec/codec.h"
#include "algorithms/test_compressed_reference.h"
#include "backend/model_port.h"
#include "backend/test_port_ranks.h"
#include "backend/test_port_worlds.h"
#include "core/base/ids.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"
#include "core/round/schedule.h"
#include "core/round/tensor_port.h"
#include "core/round/trigger.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

// Without padding in their buckets, so that a bucket is its tensor.
const std::vector<uint64_t> kSizes = {160, 96};
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.99;
constexpr double kRate = 0.01;
constexpr double kEpsilon = 1e-8;
constexpr uint64_t kWarmUp = 4;  // its last step takes the moments as they are
constexpr uint64_t kSteps = 10;

struct Case {
  int32_t world_size;
  std::string codec;

  friend void PrintTo(const Case& one, std::ostream* out) {
    *out << one.codec << "_on_" << one.world_size << "_ranks";
  }
};

// By slot.
template <typename T>
using Lists = std::vector<std::vector<T>>;

template <typename T>
Lists<T> Zeros() {
  Lists<T> zeros;
  for (uint64_t count : kSizes) zeros.emplace_back(count);
  return zeros;
}

// As at::lerp, whose two forms round differently.
template <typename T>
T Lerp(T start, T end, T weight) {
  if (weight < T{0.5}) return start + weight * (end - start);
  return end - (end - start) * (1 - weight);
}

// What an optimizer has.
// Threads: a value. Owns: its lists.
template <typename T>
struct Model {
  Lists<T> weights = Zeros<T>();
  Lists<T> first = Zeros<T>();
  Lists<T> second = Zeros<T>();

  // QAdam's step of this number, from 1.
  void Step(const Lists<T>& gradients, uint64_t step) {
    const auto rate = static_cast<T>(kRate / (1 - std::pow(kBeta1, step)));
    const uint64_t updates = std::min(step, kWarmUp - 1);
    const auto correction = static_cast<T>(std::sqrt(1 - std::pow(kBeta2, updates)));
    for (size_t slot = 0; slot < kSizes.size(); ++slot) {
      for (size_t i = 0; i < kSizes[slot]; ++i) {
        const T gradient = gradients[slot][i];
        T& variance = second[slot][i];
        if (step < kWarmUp) {
          variance =
              static_cast<T>(kBeta2) * variance + static_cast<T>(1 - kBeta2) * gradient * gradient;
        }
        T& moment = first[slot][i];
        if (step != kWarmUp) moment = Lerp(moment, gradient, static_cast<T>(1 - kBeta1));
        weights[slot][i] -=
            rate * moment / (std::sqrt(variance) / correction + static_cast<T>(kEpsilon));
      }
    }
  }

  // The moments that a rank forms of its own gradients, and the gradients of which the step forms
  // `moments` again.
  Lists<T> MomentsOf(const Lists<T>& gradients) const {
    return Between(gradients, static_cast<T>(1 - kBeta1));
  }
  Lists<T> GradientsOf(const Lists<T>& moments) const {
    return Between(moments, static_cast<T>(1 / (1 - kBeta1)));
  }

 private:
  Lists<T> Between(const Lists<T>& ends, T weight) const {
    Lists<T> result = ends;
    for (size_t slot = 0; slot < kSizes.size(); ++slot) {
      for (size_t i = 0; i < kSizes[slot]; ++i) {
        result[slot][i] = Lerp(first[slot][i], ends[slot][i], weight);
      }
    }
    return result;
  }
};

// A rank's own gradients at `weights`: each pulls towards values of its own, and steps differ.
template <typename T>
Lists<T> GradientsAt(const Lists<T>& weights, uint64_t seed, int32_t rank, uint64_t step) {
  Lists<T> gradients = weights;
  uint64_t number = 0;
  for (size_t slot = 0; slot < kSizes.size(); ++slot) {
    for (size_t i = 0; i < kSizes[slot]; ++i) {
      const uint64_t own = ((seed * 64 + static_cast<uint64_t>(rank)) * 64 + step) << 20;
      const auto noise = static_cast<T>(SplitMix(own, number++) % 1024) / 1024 - T{0.5};
      const auto goal = static_cast<T>(1 + (i + slot) % 5);
      gradients[slot][i] = (weights[slot][i] - goal) / 4 + noise / 2;
    }
  }
  return gradients;
}

// All ranks' mean, in rank order (SUM-1b).
template <typename T>
Lists<T> MeanOf(const std::vector<Lists<T>>& ranks) {
  Lists<T> mean = ranks[0];
  for (size_t slot = 0; slot < kSizes.size(); ++slot) {
    for (size_t i = 0; i < kSizes[slot]; ++i) {
      for (size_t rank = 1; rank < ranks.size(); ++rank) mean[slot][i] += ranks[rank][slot][i];
      mean[slot][i] /= static_cast<T>(ranks.size());
    }
  }
  return mean;
}

std::vector<std::byte> BytesOf(const std::vector<float>& elements) {
  std::vector<std::byte> bytes(elements.size() * sizeof(float));
  std::memcpy(bytes.data(), elements.data(), bytes.size());
  return bytes;
}

// The exchange of moments in one process.
// Threads: one. Owns: what the messages of each tensor have lacked.
class Exchange {
 public:
  explicit Exchange(const Case& one) {
    for (uint64_t count : kSizes) {
      CompressedReferenceOptions options;
      options.codec = one.codec;
      options.part_sizes.assign(static_cast<size_t>(one.world_size), 1);
      options.error_feedback = (*MakeCodec(one.codec, {}))->NeedsErrorFeedback();
      references_.emplace_back(options, count);
    }
  }

  Lists<float> Mean(const std::vector<Lists<float>>& ranks) {
    Lists<float> mean = Zeros<float>();
    for (size_t slot = 0; slot < kSizes.size(); ++slot) {
      std::vector<std::vector<std::byte>> given;
      for (const Lists<float>& rank : ranks) given.push_back(BytesOf(rank[slot]));
      const std::vector<std::byte> result = references_[slot].Round(given);
      std::memcpy(mean[slot].data(), result.data(), result.size());
    }
    return mean;
  }

 private:
  std::deque<CompressedReference> references_;  // which do not move
};

// QAdam of all ranks in one process; `exchange` is the mean of their moments.
template <typename T, typename MeanOfMoments>
Model<T> OneProcess(const Case& one, uint64_t seed, MeanOfMoments exchange) {
  Model<T> model;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    std::vector<Lists<T>> ranks;
    for (int32_t rank = 0; rank < one.world_size; ++rank) {
      ranks.push_back(GradientsAt(model.weights, seed, rank, step));
      if (step > kWarmUp) ranks.back() = model.MomentsOf(ranks.back());
    }
    model.Step(step > kWarmUp ? model.GradientsOf(exchange(ranks)) : MeanOf(ranks), step);
  }
  return model;
}

// A rank's gradients, which enter the buckets as they are or, once the warm-up is over, as the
// moments that they make.
// Threads: as TensorPort. Owns: the gradients; borrows the model.
class QAdamTensors final : public TensorPort {
 public:
  explicit QAdamTensors(const Model<float>& model)
      : model_(model), gradients_(Zeros<float>()), places_(kSizes.size()) {}

  void EndWarmUp() { brings_moments_ = true; }
  void SetGradients(Lists<float> gradients) { gradients_ = std::move(gradients); }
  const Lists<float>& gradients() const { return gradients_; }

  void Place(SlotId slot, std::byte* memory) override { places_[Index(slot)] = memory; }
  absl::StatusOr<Brought> Bring(SlotId slot, bool) override {
    const Lists<float> given = brings_moments_ ? model_.MomentsOf(gradients_) : gradients_;
    const std::vector<float>& elements = given[Index(slot)];
    std::memcpy(places_[Index(slot)], elements.data(), elements.size() * sizeof(float));
    return Brought{places_[Index(slot)], true};
  }
  void Merge(SlotId slot, const CommitRule&, bool) override {
    std::vector<float>& gradients = gradients_[Index(slot)];
    std::memcpy(gradients.data(), places_[Index(slot)], gradients.size() * sizeof(float));
    if (!brings_moments_) return;
    Lists<float> moments = gradients_;
    gradients = model_.GradientsOf(moments)[Index(slot)];
  }

 private:
  static size_t Index(SlotId slot) { return static_cast<size_t>(slot.value()); }

  const Model<float>& model_;
  Lists<float> gradients_;
  std::vector<std::byte*> places_;
  bool brings_moments_ = false;
};

TrainingEvent EventOf(EventKind kind, int32_t slot = 0) {
  TrainingEvent event;
  event.kind = kind;
  event.slot = slot;
  return event;
}

absl::Status BackwardPass(ModelPort& port) {
  RETURN_IF_ERROR(port.Post(EventOf(EventKind::kBackwardBegins)));
  for (int32_t slot : {1, 0}) {
    RETURN_IF_ERROR(port.Post(EventOf(EventKind::kTensorReady, slot)));
  }
  RETURN_IF_ERROR(port.Post(EventOf(EventKind::kBackwardEnds)));
  RETURN_IF_ERROR(port.Wait());
  return port.AdoptOrder();
}

absl::StatusOr<std::unique_ptr<ModelPort>> MakePortOf(const PortRank& rank,
                                                      const PortSettings& settings,
                                                      TensorPort& tensors) {
  return MakePort(rank.source, rank.world_size, settings, kSizes, tensors);
}

// A rank's whole training, which `model` is after it.
absl::Status TrainRank(PortRank& rank, const Case& one, uint64_t seed, Model<float>& model) {
  QAdamTensors tensors(model);
  ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port,
                   MakePortOf(rank, {.algorithm = "gradient_allreduce"}, tensors));
  for (uint64_t step = 1; step <= kSteps; ++step) {
    if (step == kWarmUp + 1) {
      tensors.EndWarmUp();
      RETURN_IF_ERROR(rank.meet("warm-up"));  // nobody is at its last round
      port.reset();
      ASSIGN_OR_RETURN(port,
                       MakePortOf(rank,
                                  {.algorithm = "qadam",
                                   .options = {{"codec", one.codec}, {"hierarchical", "false"}}},
                                  tensors));
    }
    tensors.SetGradients(GradientsAt(model.weights, seed, rank.rank.value(), step));
    RETURN_IF_ERROR(BackwardPass(*port));
    model.Step(tensors.gradients(), step);
  }
  return rank.meet("end");
}

void ExpectNear(const Lists<float>& lists, const Lists<double>& exact, double most) {
  for (size_t slot = 0; slot < kSizes.size(); ++slot) {
    for (size_t i = 0; i < kSizes[slot]; ++i) {
      ASSERT_NEAR(lists[slot][i], exact[slot][i], most) << "tensor " << slot << ", element " << i;
    }
  }
}

class QAdamTest : public ::testing::TestWithParam<Case> {};

TEST_P(QAdamTest, StepsAreThoseOfOneProcessWithTheSameMessages) {
  const Case& one = GetParam();
  for (const uint64_t seed : {1, 2}) {
    Exchange exchange(one);
    const Model<float> expected = OneProcess<float>(
        one, seed, [&](const std::vector<Lists<float>>& ranks) { return exchange.Mean(ranks); });
    const Model<double> exact = OneProcess<double>(one, seed, MeanOf<double>);
    std::vector<Model<float>> models(static_cast<size_t>(one.world_size));
    RunPortRanks(
        one.world_size,
        [&](PortRank& rank) {
          Model<float>& model = models[static_cast<size_t>(rank.rank.value())];
          return TrainRank(rank, one, seed, model = Model<float>());
        },
        [&] {
          for (const Model<float>& model : models) {
            EXPECT_EQ(model.weights, expected.weights) << "data of seed " << seed;
            EXPECT_EQ(model.first, expected.first) << "data of seed " << seed;
            // A moment is below 2. Both messages of each exchange lose their part of that, and
            // with error feedback as much again of the one before.
            const double lost = (*MakeCodec(one.codec, {}))->Bound().of_largest * 2 * 4 *
                                static_cast<double>(kSteps - kWarmUp);
            ExpectNear(model.first, exact.first, lost + 1e-5);
            // A step is at most this times a moment.
            const double reach = kRate * (kSteps - kWarmUp) / (1 - std::pow(kBeta1, kWarmUp));
            ExpectNear(model.weights, exact.weights, reach * 10 * lost + 1e-5);
          }
        });
  }
}

INSTANTIATE_TEST_SUITE_P(All, QAdamTest,
                         ::testing::ValuesIn(std::vector<Case>{{2, "min_max_uint8"},
                                                               {4, "min_max_uint8"},
                                                               {2, "float16"},
                                                               {4, "float16"},
                                                               {2, "block_uint8"},
                                                               {4, "block_uint8"}}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace pelton
