// Models whose buckets lie on a GPU, over the stand-in: what the streams order and what the host
// does not wait for. With daemons, too: the rounds are in the trainer's process there as well.
#include <atomic>
#include <cstdlib>
#include <latch>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/model.h"
#include "backend/test_gpu.h"
#include "backend/test_ranks.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kElements = 1000;
constexpr size_t kBytes = kElements * sizeof(float);
// Work that keeps a stream busy for a while: long against everything that a host does in a round.
constexpr size_t kSlowBytes = 64 << 20;
constexpr int kSlowCopies = 16;
constexpr char kKernelFault[] = "PELTON_STAND_IN_KERNEL_FAULT";

// One rank's trainer: a model of three tensors in two buckets, and the stream it computes on.
// Threads: one. Owns: all of it, but the backend.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> Make(
      Backend& backend, absl::Duration timeout = absl::Seconds(20),
      const std::string& algorithm = "gradient_allreduce",
      const AlgorithmOptions& algorithm_options = {}) {
    auto trainer = std::make_unique<Trainer>();
    ASSIGN_OR_RETURN(trainer->runtime_, cuda::CudaRuntime::Load());
    const int result = trainer->calls().stream_create_with_flags(&trainer->stream_, 1);
    RETURN_IF_ERROR(trainer->runtime_->ToStatus(result, "stream"));
    ModelOptions options;
    options.name = "net";
    options.group = Group::World(backend.world_size());
    options.algorithm = algorithm;
    options.algorithm_options = algorithm_options;
    options.bucket_size_bytes = 2 * kBytes;
    options.timeout = timeout;
    options.callers_stream = [stream = trainer->stream_] { return stream; };
    const Device device{DeviceKind::kCuda, backend.rank().value()};
    std::vector<TensorSpec> specs;
    for (const char* name : {"a", "b", "c"}) {
      specs.push_back({name, DType::kFloat32, kElements, device});
    }
    ASSIGN_OR_RETURN(trainer->model_, Model::Create(backend, options, std::move(specs)));
    return trainer;
  }
  ~Trainer() {
    // What is on the stream still uses the model's memory.
    if (stream_ != nullptr) calls().stream_synchronize(stream_);
    model_.reset();
    if (stream_ != nullptr) calls().stream_destroy(stream_);
  }

  const cuda::CudaTable& calls() const { return runtime_->calls(); }
  ModelRounds& rounds() { return model_->rounds(); }

  void KeepStreamBusy() {
    for (int i = 0; i < kSlowCopies; ++i) {
      calls().memcpy_async(slow_.data(), slow_.data() + kSlowBytes, kSlowBytes, 4, stream_);
    }
  }
  // Puts the writing of `value` into the slot on the stream, and says that it is ready there.
  absl::Status Produce(int32_t slot, float value) {
    std::vector<float>& source = sources_.emplace_back(kElements, value);
    calls().memcpy_async(rounds().DataOf(SlotId(slot)), source.data(), kBytes, 4, stream_);
    return rounds().MarkReady(SlotId(slot));
  }
  absl::Status EndRound() {
    RETURN_IF_ERROR(rounds().EndRound());
    return rounds().WaitRound(Soon());
  }
  // Puts the reading of what the slot holds on the stream, and waits for it.
  float Read(int32_t slot) {
    float value = 0;
    const std::byte* const from = rounds().ResultOf(SlotId(slot)).data + kBytes - sizeof value;
    calls().memcpy_async(&value, from, sizeof value, 4, stream_);
    calls().stream_synchronize(stream_);
    return value;
  }
  bool UsedByAny(int32_t slot) { return rounds().ResultOf(SlotId(slot)).used_by_any; }
  bool StreamIsBusy() {
    cuda::EventHandle event = nullptr;
    calls().event_create_with_flags(&event, 2);
    calls().event_record(event, stream_);
    const bool busy = calls().event_query(event) == cuda::kErrorNotReady;
    calls().event_destroy(event);
    return busy;
  }

 private:
  std::unique_ptr<const cuda::CudaRuntime> runtime_;
  cuda::StreamHandle stream_ = nullptr;
  std::vector<std::byte> slow_ = std::vector<std::byte>(2 * kSlowBytes);
  std::list<std::vector<float>> sources_;  // what is on the stream still reads them
  std::unique_ptr<Model> model_;
};

class GpuModelTest : public GpuTest {
 protected:
  ~GpuModelTest() override { unsetenv(kKernelFault); }
};

// By name of the algorithm.
class GpuAlgorithmTest : public GpuModelTest, public testing::WithParamInterface<const char*> {
 protected:
  static absl::StatusOr<std::unique_ptr<Trainer>> MakeTrainer(Backend& backend) {
    // Longer than the stream is kept busy on a machine that does other things: an operation that is
    // overdue there is told of by a later round alone.
    return Trainer::Make(backend, absl::Minutes(2), GetParam(), {{"hierarchical", "false"}});
  }
  // `value`, or that after it went through messages whose bytes are levels of a range, up to
  // `step`.
  static testing::Matcher<float> Arrives(float value, float step) {
    if (std::string(GetParam()) == "gradient_allreduce") return testing::Eq(value);
    return testing::FloatNear(value, step);
  }
  // The same where all elements of the bucket are equal, so that nothing but rounding is lost.
  static testing::Matcher<float> Arrives(float value) { return Arrives(value, 1e-4f * value); }
};

INSTANTIATE_TEST_SUITE_P(, GpuAlgorithmTest, testing::Values("gradient_allreduce", "bytegrad"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(GpuAlgorithmTest, RoundsAverageInTheOrderOfTheStreams) {
  Run(2, [](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(backend));
    for (float round = 1; round < 4; ++round) {
      for (int32_t slot : {2, 0, 1}) RETURN_IF_ERROR(trainer->Produce(slot, 10 * round + rank));
      RETURN_IF_ERROR(trainer->EndRound());
      for (int32_t slot : {0, 1, 2}) EXPECT_THAT(trainer->Read(slot), Arrives(10 * round + 0.5f));
    }
    return absl::OkStatus();
  });
}

TEST_P(GpuAlgorithmTest, TheHostWaitsForNoStream) {
  Run(2, [](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(backend));
    for (float round = 1; round < 3; ++round) {
      trainer->KeepStreamBusy();
      for (int32_t slot : {2, 1, 0}) RETURN_IF_ERROR(trainer->Produce(slot, round + rank));
      RETURN_IF_ERROR(trainer->EndRound());
      // NCCL connects on the host at its first operation; from then on it is in the streams' hands.
      if (round > 1) {
        EXPECT_TRUE(trainer->StreamIsBusy());
      }
      for (int32_t slot : {0, 1, 2}) EXPECT_THAT(trainer->Read(slot), Arrives(round + 0.5f));
    }
    return absl::OkStatus();
  });
}

TEST_P(GpuAlgorithmTest, ARankThatDidNotUseATensorLearnsWhetherAnotherDid) {
  Run(2, [](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(backend));
    for (int round = 0; round < 2; ++round) {
      RETURN_IF_ERROR(trainer->Produce(0, 1));
      if (rank == 1) RETURN_IF_ERROR(trainer->Produce(1, 3));
      RETURN_IF_ERROR(trainer->EndRound());
      EXPECT_TRUE(trainer->UsedByAny(0));
      EXPECT_TRUE(trainer->UsedByAny(1));
      EXPECT_FALSE(trainer->UsedByAny(2));
      // Both are in one bucket: a byte has 256 levels for what is between 0 and 3.
      EXPECT_THAT(trainer->Read(0), Arrives(1, 0.02f));
      EXPECT_THAT(trainer->Read(1), Arrives(1.5f, 0.02f));
    }
    return absl::OkStatus();
  });
}

TEST_P(GpuAlgorithmTest, ThePlanFollowsRankZerosOrder) {
  Run(2, [](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, MakeTrainer(backend));
    for (int32_t slot : {1, 0, 2}) RETURN_IF_ERROR(trainer->Produce(slot, rank));
    RETURN_IF_ERROR(trainer->EndRound());
    ASSIGN_OR_RETURN(const std::vector<SlotId> order, trainer->rounds().AgreeOnOrder(Soon()));
    EXPECT_EQ(order, (std::vector<SlotId>{SlotId(1), SlotId(0), SlotId(2)}));
    RETURN_IF_ERROR(trainer->rounds().Replan(order, Soon()));
    for (int32_t slot : {0, 1, 2}) RETURN_IF_ERROR(trainer->Produce(slot, 7 + rank));
    RETURN_IF_ERROR(trainer->EndRound());
    for (int32_t slot : {0, 1, 2}) EXPECT_THAT(trainer->Read(slot), Arrives(7.5f));
    return absl::OkStatus();
  });
}

// The host has gone on when the operation turns out to hang: a later round says so.
TEST_F(GpuModelTest, ARankThatNeverComesIsNamedByALaterRound) {
  std::latch heard(1);
  Run(2, [&](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                     Trainer::Make(backend, absl::Milliseconds(500)));
    const auto produce_all = [&] {
      for (int32_t slot : {0, 1, 2}) RETURN_IF_ERROR(trainer->Produce(slot, 1));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(produce_all());
    RETURN_IF_ERROR(trainer->EndRound());
    if (rank == 1) {  // stays away until it hears that the job has failed
      const absl::Time give_up = Soon();
      while (backend.failure().ok() && Clock::Real().Now() < give_up) std::this_thread::yield();
      heard.count_down();
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(produce_all());
    RETURN_IF_ERROR(trainer->EndRound());
    heard.wait();
    RETURN_IF_ERROR(produce_all());
    RETURN_IF_ERROR(trainer->rounds().EndRound());
    const absl::Status failed = trainer->rounds().WaitRound(Soon());
    EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(failed.message()),
                AllOf(HasSubstr("allreduce"), HasSubstr("waiting for rank 1")));
    return absl::OkStatus();
  });
}

// What it would be saved with, the weights, has taken what no peer has sent.
TEST_F(GpuModelTest, NoStateIsSavedAfterARoundThatFailsOnTheDevice) {
  std::latch heard(1);
  Run(2, [&](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                     Trainer::Make(backend, absl::Milliseconds(500)));
    for (int32_t slot : {0, 1, 2}) RETURN_IF_ERROR(trainer->Produce(slot, 1));
    RETURN_IF_ERROR(trainer->EndRound());
    RETURN_IF_ERROR(trainer->rounds().SaveStates(Soon()).status());
    if (rank == 1) {  // stays away
      heard.wait();
      return absl::OkStatus();
    }
    for (int32_t slot : {0, 1, 2}) RETURN_IF_ERROR(trainer->Produce(slot, 1));
    RETURN_IF_ERROR(trainer->EndRound());
    const absl::Status failed = trainer->rounds().SaveStates(Soon()).status();
    EXPECT_EQ(failed.code(), absl::StatusCode::kDeadlineExceeded) << failed;
    EXPECT_THAT(std::string(failed.message()), HasSubstr("waiting for rank 1"));
    heard.count_down();
    return absl::OkStatus();
  });
}

TEST_F(GpuModelTest, AnErrorOfTheDeviceEndsTheRoundsOfAllRanks) {
  std::latch one_round(2);
  Run(2, [&](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Make(backend));
    const auto round = [&] {
      for (int32_t slot : {0, 1, 2}) RETURN_IF_ERROR(trainer->Produce(slot, rank));
      return trainer->EndRound();
    };
    RETURN_IF_ERROR(round());
    one_round.arrive_and_wait();
    if (rank == 0) stand_in_.fail("cudaMemsetAsync", 0, 700);
    // The one that met no error hears of the other's, perhaps after it has gone on.
    absl::Status failed = absl::OkStatus();
    for (const absl::Time give_up = Soon(); failed.ok() && Clock::Real().Now() < give_up;) {
      failed = round();
    }
    EXPECT_THAT(std::string(failed.message()), HasSubstr("cudaMemsetAsync"));
    return absl::OkStatus();
  });
}

TEST_F(GpuModelTest, AKernelThatCannotBeLaunchedEndsTheRoundsOfAllRanks) {
  setenv(kKernelFault, "pelton_merge_pieces", 1);
  Run(2, [](Backend& backend, float rank) {
    ASSIGN_OR_RETURN(
        const std::unique_ptr<Trainer> trainer,
        Trainer::Make(backend, absl::Seconds(20), "bytegrad", {{"hierarchical", "false"}}));
    // A rank that fails while the other one still makes its model fails that, too.
    RETURN_IF_ERROR(Barrier(backend.control(), "made", Soon()));
    absl::Status failed = absl::OkStatus();
    for (const absl::Time give_up = Soon(); failed.ok() && Clock::Real().Now() < give_up;) {
      for (int32_t slot : {0, 1, 2}) failed.Update(trainer->Produce(slot, rank));
      failed.Update(trainer->EndRound());
    }
    EXPECT_THAT(std::string(failed.message()), HasSubstr("pelton_merge_pieces: CUDA's error 700"));
    return absl::OkStatus();
  });
}

// Algorithms that leave buckets in a GPU's memory, with the codec that there are kernels for. Which
// those are, and what refuses: algorithms/codec_matrix_test.cc.
TEST_F(GpuModelTest, EveryAlgorithmThatTakesItsMemoryMakesTheMeanThere) {
  std::atomic<int> made = 0;
  Run(2, [&](Backend& backend, float rank) {
    for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
      for (const AlgorithmOptions& options :
           {AlgorithmOptions{},
            AlgorithmOptions{{"codec", "min_max_uint8"}, {"hierarchical", "false"}},
            AlgorithmOptions{{"codec", "min_max_uint8"}, {"hierarchical", "true"}}}) {
        const auto algorithm = MakeAlgorithm(entry.name, options);
        if (!algorithm.ok() || !(*algorithm)->TakesDeviceMemory()) continue;
        ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                         Trainer::Make(backend, absl::Seconds(20), entry.name, options));
        for (int32_t slot : {2, 0, 1}) RETURN_IF_ERROR(trainer->Produce(slot, 10 + rank));
        RETURN_IF_ERROR(trainer->EndRound());
        EXPECT_THAT(trainer->Read(0), testing::FloatNear(10.5f, 1e-3f))
            << DescribeAlgorithm(entry.name, options);
        ++made;
      }
    }
    return absl::OkStatus();
  });
  EXPECT_GE(made, 2 * 9) << "on two ranks: gradient_allreduce, and bytegrad with its kin";
}

TEST_F(GpuModelTest, RefusesAnAlgorithmThatWorksOnTheHost) {
  Run(2, [](Backend& backend, float) {
    const absl::Status refused = Trainer::Make(backend, absl::Seconds(20), "power_sgd").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("stage 'power sgd' cannot work on cuda memory"));
    return absl::OkStatus();
  });
}

TEST_F(GpuModelTest, RefusesTensorsOfTwoDevices) {
  const std::vector<absl::Status> results = RunFixtureRanks(1, [](const BackendOptions& options) {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ModelOptions model;
    model.name = "net";
    model.group = Group::World(WorldSize(1));
    return Model::Create(*backend, model,
                         {{.name = "a", .count = 1},
                          {.name = "b", .count = 1, .device = {DeviceKind::kCuda, 3}}})
        .status();
  });
  EXPECT_THAT(std::string(results[0].message()), HasSubstr("'a' is on host 0, 'b' on cuda 3"));
}

}  // namespace
}  // namespace pelton
