// Weights whose buckets lie on a GPU, over the stand-in: a model's port brings and merges them in
// the order of the trainer's stream, and changes none of them by a round that fails on the device.
#include <cstdint>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "backend/test_gpu.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/round/tensor_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr size_t kElements = 1000;
constexpr size_t kBytes = kElements * sizeof(float);
constexpr int kDeviceToDevice = 4;

// A trainer's weights on its device, and the stream that it computes on.
// Threads: as TensorPort. Owns: the stream and the weights.
class DeviceWeights final : public TensorPort {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Make(size_t count, float value) {
    auto weights = std::make_unique<DeviceWeights>();
    ASSIGN_OR_RETURN(weights->runtime_, cuda::CudaRuntime::Load());
    const int result = weights->calls().stream_create_with_flags(&weights->stream_, 1);
    RETURN_IF_ERROR(weights->runtime_->ToStatus(result, "stream"));
    weights->tensors_.assign(count, std::vector<float>(kElements, value));
    weights->places_.resize(count);
    return weights;
  }
  ~DeviceWeights() override {
    if (stream_ == nullptr) return;
    calls().stream_synchronize(stream_);
    calls().stream_destroy(stream_);
  }

  cuda::StreamHandle stream() const { return stream_; }
  void Place(SlotId slot, std::byte* memory) override { places_[Index(slot)] = memory; }
  absl::StatusOr<Brought> Bring(SlotId slot, bool) override {
    Copy(places_[Index(slot)], tensors_[Index(slot)].data());
    return Brought{places_[Index(slot)]};
  }
  void Merge(SlotId slot, const CommitRule&, bool) override {
    Copy(tensors_[Index(slot)].data(), places_[Index(slot)]);
  }
  // What is on the stream has been done.
  const std::vector<std::vector<float>>& Read() {
    calls().stream_synchronize(stream_);
    return tensors_;
  }

 private:
  static size_t Index(SlotId slot) { return static_cast<size_t>(slot.value()); }
  const cuda::CudaTable& calls() const { return runtime_->calls(); }
  void Copy(void* to, const void* from) {
    calls().memcpy_async(to, from, kBytes, kDeviceToDevice, stream_);
  }

  std::unique_ptr<const cuda::CudaRuntime> runtime_;
  cuda::StreamHandle stream_ = nullptr;
  std::vector<std::vector<float>> tensors_;
  std::vector<std::byte*> places_;
};

// One rank's weights and their port, which goes first.
// Threads: one. Owns: both, but not the backend.
struct Trainer {
  std::unique_ptr<DeviceWeights> weights;
  std::unique_ptr<ModelPort> port;

  static absl::StatusOr<Trainer> Make(Backend& backend, float value, const std::string& algorithm,
                                      const AlgorithmOptions& algorithm_options,
                                      absl::Duration timeout = absl::Seconds(20)) {
    constexpr size_t kTensors = 3;
    Trainer trainer;
    ASSIGN_OR_RETURN(trainer.weights, DeviceWeights::Make(kTensors, value));
    PortOptions options;
    options.model.name = "net";
    options.model.group = Group::World(backend.world_size());
    options.model.algorithm = algorithm;
    options.model.algorithm_options = algorithm_options;
    options.model.bucket_size_bytes = 2 * kBytes;
    options.model.timeout = timeout;
    options.model.callers_stream = [stream = trainer.weights->stream()] { return stream; };
    ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> made, MakeAlgorithm(algorithm, algorithm_options));
    std::vector<TensorSpec> specs;
    for (const char* name : {"a", "b", "c"}) {
      specs.push_back(
          {name, DType::kFloat32, kElements, {DeviceKind::kCuda, backend.rank().value()}});
    }
    ASSIGN_OR_RETURN(trainer.port, ModelPort::Create(backend, std::move(options), std::move(made),
                                                     std::move(specs), *trainer.weights));
    return trainer;
  }

  // One step of training that changes no weight by itself.
  absl::Status Step() {
    for (EventKind kind :
         {EventKind::kForwardBegins, EventKind::kBackwardBegins, EventKind::kBackwardEnds,
          EventKind::kBeforeStep, EventKind::kAfterStep}) {
      TrainingEvent event;
      event.kind = kind;
      RETURN_IF_ERROR(port->Post(event));
    }
    return absl::OkStatus();
  }
};

// What a step makes of the weights 10, 11 and so on, by rank.
// Threads: a value. Owns: its options.
struct Averaging {
  std::string name;
  std::string algorithm;
  AlgorithmOptions options;
  std::vector<float> expected = {};
};

void PrintTo(const Averaging& averaging, std::ostream* os) { *os << averaging.name; }

class GpuWeightsTest : public GpuTest, public testing::WithParamInterface<Averaging> {};

INSTANTIATE_TEST_SUITE_P(
    , GpuWeightsTest,
    testing::Values(Averaging{"local_sgd", "local_sgd", {{"interval", "1"}}, {11, 11, 11}},
                    Averaging{"all", "decentralized", {}, {11, 11, 11}},
                    // At the first step rank 0 of three sits out.
                    Averaging{"pairs",
                              "decentralized",
                              {{"peer_selection_mode", "shift_one"}, {"hierarchical", "false"}},
                              {10, 11.5, 11.5}},
                    // One host: its leader sits out, and gives all the mean.
                    Averaging{"pairs_of_hosts",
                              "decentralized",
                              {{"peer_selection_mode", "shift_one"}, {"hierarchical", "true"}},
                              {11, 11, 11}},
                    // The first round is a global one.
                    Averaging{"global_rounds",
                              "decentralized",
                              {{"peer_selection_mode", "shift_one"},
                               {"hierarchical", "false"},
                               {"global_interval", "1"}},
                              {11, 11, 11}}),
    [](const auto& info) { return info.param.name; });

TEST_P(GpuWeightsTest, AreAveragedWhereTheyAre) {
  Run(3, [](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(Trainer trainer,
                     Trainer::Make(backend, 10 + rank, GetParam().algorithm, GetParam().options));
    RETURN_IF_ERROR(trainer.Step());
    const float expected = GetParam().expected[static_cast<size_t>(rank)];
    for (const std::vector<float>& tensor : trainer.weights->Read()) {
      EXPECT_THAT(tensor, Each(testing::FloatNear(expected, 1e-5F))) << "rank " << rank;
    }
    return absl::OkStatus();
  });
}

// COMMIT-1: the operation is in the stream's order, and then never comes to its end.
TEST_P(GpuWeightsTest, StayAsTheyAreWhereARankNeverComes) {
  std::latch failed(1);
  Run(3, [&](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(Trainer trainer, Trainer::Make(backend, 10 + rank, GetParam().algorithm,
                                                    GetParam().options, absl::Milliseconds(500)));
    RETURN_IF_ERROR(trainer.Step());
    const std::vector<std::vector<float>> before = trainer.weights->Read();
    if (rank == 1) {  // stays away
      failed.wait();
      return absl::OkStatus();
    }
    const absl::Status status = trainer.Step();
    EXPECT_EQ(trainer.weights->Read(), before);
    if (rank == 2) return absl::OkStatus();  // of pairs it sits this round out
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("model 'net', rank 0, round 2: bucket "), HasSubstr("(c"),
                      HasSubstr("waiting for rank 1")));
    failed.count_down();
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace pelton
