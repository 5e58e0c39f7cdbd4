// Neighbour operations on a GPU beyond the suite: their memory, their streams, and what fails.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/neighbors.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "core/base/clock.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/cuda/shared_library.h"
#include "gmock/gmock.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

constexpr int kCudaFailure = 700;  // cudaErrorIllegalAddress
constexpr int kNoMemory = 2;       // cudaErrorMemoryAllocation

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }
absl::Time FarDeadline() { return Clock::Real().Now() + absl::Seconds(60); }

using TablePointer = std::shared_ptr<const WeightTable>;

// Of two ranks, each of which has a third of its own and two thirds of the other's.
TablePointer TableOf(Rank rank, WeightTable::Form form = {}) {
  const Rank other(1 - rank.value());
  return *WeightTable::Create(
      {.own = 1.0 / 3, .sources = {{other, 2.0 / 3}}, .destinations = {{other, 0.5}}},
      std::move(form));
}

Tensor TensorOf(std::vector<float>& values) {
  return {values.data(), values.size(), DType::kFloat32};
}

class NcclNeighborsTest : public testing::Test {
 protected:
  NcclNeighborsTest() : stand_in_(stand_in::StandIn::Get()) {
    options_.nccl_path = options_.cudart_path = options_.kernels_path = stand_in::LibraryPath();
    runtime_ = *cuda::CudaRuntime::Load(options_.cudart_path);
  }
  // Whatever happened in a test, nothing stays behind.
  ~NcclNeighborsTest() override {
    stand_in_.reset();
    EXPECT_EQ(stand_in_.open_count(), 0);
  }

  cuda::StreamHandle MakeStream() {
    cuda::StreamHandle stream = nullptr;
    runtime_->calls().stream_create_with_flags(&stream, cuda::kStreamNonBlocking);
    return stream;
  }

  // An average of two ranks, while `call` fails once, somewhere. It fails on both.
  void ExpectFailure(const char* call, int skip, int result, const std::string& text) {
    std::vector<absl::Status> ends(2);
    GpuWorld world(WorldSize(2), options_);
    world.Run([&](Communicator& communicator) {
      std::vector<float> values(8, 3);
      const TablePointer table = TableOf(communicator.rank());
      auto together = Barrier(communicator);
      ASSERT_TRUE(together.ok()) << together.status();
      ASSERT_EQ(Await(communicator, *together, FarDeadline()), absl::OkStatus());
      if (communicator.rank() == Rank(0)) stand_in_.fail(call, skip, result);
      together = Barrier(communicator);
      if (together.ok()) Await(communicator, *together, FarDeadline()).IgnoreError();
      const auto completion =
          NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
      ends[static_cast<size_t>(communicator.rank().value())] =
          completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
    });
    EXPECT_THAT(TextOf(ends[0]) + TextOf(ends[1]), HasSubstr(text));
    for (const absl::Status& end : ends) EXPECT_FALSE(end.ok());
  }

  const stand_in::StandIn& stand_in_;
  NcclOptions options_;
  std::unique_ptr<const cuda::CudaRuntime> runtime_;
};

TEST_F(NcclNeighborsTest, TheMemoryOfAnAverageServesTheNext) {
  GpuWorld world(WorldSize(2), options_);
  std::vector<int> counts;
  world.Run([&](Communicator& communicator) {
    const TablePointer table = TableOf(communicator.rank());
    for (int round = 0; round < 40; ++round) {
      std::vector<float> values(1000, 3.0F * static_cast<float>(communicator.rank().value()));
      const auto completion =
          NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
      ASSERT_TRUE(completion.ok()) << completion.status();
      ASSERT_EQ(Await(communicator, *completion, FarDeadline()), absl::OkStatus());
      ASSERT_EQ(values[999], communicator.rank() == Rank(0) ? 2 : 1);
      const auto together = Barrier(communicator);
      ASSERT_EQ(Await(communicator, *together, FarDeadline()), absl::OkStatus());
      if (communicator.rank() == Rank(0) && round % 10 == 9) {
        counts.push_back(stand_in_.open_count());
      }
    }
  });
  // 60 averages later: some more events, if the device was late once, and no memory.
  EXPECT_LT(counts.back(), counts.front() + 20);
}

// Work on the stream before it is seen, what is put behind it sees the result, and the next
// average, on another stream, does not overwrite what has come for this one.
TEST_F(NcclNeighborsTest, AveragesKeepTheOrderOfTheirStreams) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    const TablePointer table = TableOf(communicator.rank());
    const cuda::StreamHandle handles[2] = {MakeStream(), MakeStream()};
    constexpr size_t kMany = 30;
    std::vector<std::vector<float>> inputs(kMany), values(kMany), seen(kMany);
    Completion last;
    for (size_t i = 0; i < kMany; ++i) {
      CudaStream stream(handles[i % 2], rank);
      inputs[i].assign(5000, static_cast<float>(3 * i) + 3.0F * static_cast<float>(rank));
      values[i].resize(5000);
      seen[i].resize(5000);
      runtime_->calls().memcpy_async(values[i].data(), inputs[i].data(), 20000,
                                     cuda::kMemcpyDefault, stream.handle());
      const auto completion = NeighborAllReduce(communicator, TensorOf(values[i]),
                                                TensorOf(values[i]), *table, {}, &stream);
      ASSERT_TRUE(completion.ok()) << completion.status();
      ASSERT_EQ(PutBehind(communicator, *completion, stream), absl::OkStatus());
      runtime_->calls().memcpy_async(seen[i].data(), values[i].data(), 20000, cuda::kMemcpyDefault,
                                     stream.handle());
      last = *completion;
    }
    EXPECT_EQ(Await(communicator, last, FarDeadline()), absl::OkStatus());
    for (const auto handle : handles) {
      runtime_->calls().stream_synchronize(handle);
      runtime_->calls().stream_destroy(handle);
    }
    for (size_t i = 0; i < kMany; ++i) {
      EXPECT_EQ(seen[i], std::vector<float>(5000, static_cast<float>(3 * i) + (rank == 0 ? 2 : 1)));
    }
  });
}

TEST_F(NcclNeighborsTest, WhatAnOperationNeedsMayGoAfterItsLaunch) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    std::vector<float> values(4, 3.0F * static_cast<float>(communicator.rank().value()));
    TablePointer table = TableOf(communicator.rank(), {.sends_weights = true});
    const auto completion =
        NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
    table = nullptr;
    ASSERT_TRUE(completion.ok()) << completion.status();
    ASSERT_EQ(Await(communicator, *completion, FarDeadline()), absl::OkStatus());
    // 1/3 of its own, and 2/3 of a half of the other's.
    EXPECT_FLOAT_EQ(values[0], 1);
  });
}

TEST_F(NcclNeighborsTest, WithoutTheKernelNothingIsSent) {
  options_.kernels_path = "/nowhere/libpelton_kernels.so";
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    std::vector<float> values(4), gathered(4);
    const TablePointer table = TableOf(communicator.rank());
    const auto average =
        NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
    EXPECT_EQ(average.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(TextOf(average.status()), HasSubstr("/nowhere/libpelton_kernels.so"));
    // A gather needs none.
    const auto gather =
        NeighborAllGather(communicator, TensorOf(values), TensorOf(gathered), *table);
    ASSERT_TRUE(gather.ok()) << gather.status();
    EXPECT_EQ(Await(communicator, *gather, FarDeadline()), absl::OkStatus());
  });
}

TEST_F(NcclNeighborsTest, AFailureOfTheDeviceEndsBothEnds) {
  ExpectFailure("pelton_weighted_mean", 0, kCudaFailure, "pelton_weighted_mean: an error");
  ExpectFailure("cudaMemcpyAsync", 0, kCudaFailure, "cudaMemcpyAsync: an error");
  ExpectFailure("cudaMalloc", 0, kNoMemory, "cudaMalloc: out of memory");
  ExpectFailure("ncclSend", 0, 2, "ncclGroupEnd");
  ExpectFailure("ncclRecv", 0, 2, "ncclGroupEnd");
}

// The other rank's tensor is longer: what came is combined although it is of no use, and the memory
// is the caller's again only after that.
TEST_F(NcclNeighborsTest, ItsMemoryIsFreeWhenAnAverageHasFailed) {
  GpuWorld world(WorldSize(2), options_);
  const auto library = SharedLibrary::Find({stand_in::LibraryPath(), {}, ""});
  ASSERT_TRUE(library.ok()) << library.status();
  const auto query =
      reinterpret_cast<int (*)(cuda::StreamHandle)>(library->Symbol("cudaStreamQuery"));
  world.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    const cuda::StreamHandle handle = MakeStream();
    CudaStream stream(handle, rank);
    const TablePointer table = TableOf(communicator.rank());
    std::vector<float> first(4), values(rank == 0 ? 4 : 5);
    for (std::vector<float>* tensor : {&first, &values}) {  // NCCL connects in the first one
      const auto completion = NeighborAllReduce(communicator, TensorOf(*tensor), TensorOf(*tensor),
                                                *table, {}, &stream);
      const absl::Status status =
          completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
      EXPECT_EQ(status.ok(), tensor == &first) << status;
    }
    EXPECT_EQ(query(handle), cuda::kSuccess) << "rank " << rank;
    runtime_->calls().stream_destroy(handle);
  });
}

// The memory in which an average collects goes with the communicator.
TEST_F(NcclNeighborsTest, MayBeClosedWhileANeighborIsMissing) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    std::vector<float> values(4);
    if (communicator.rank() == Rank(1)) {  // is there until the other one gives up
      const auto never = Recv(communicator, TensorOf(values), Rank(0));
      ASSERT_TRUE(never.ok()) << never.status();
      EXPECT_FALSE(Await(communicator, *never, FarDeadline()).ok());
      return;
    }
    const TablePointer table = TableOf(communicator.rank());
    const auto completion =
        NeighborAllReduce(communicator, TensorOf(values), TensorOf(values), *table);
    ASSERT_TRUE(completion.ok()) << completion.status();
    communicator.Abort(absl::CancelledError("enough"));
    EXPECT_EQ(Await(communicator, *completion, FarDeadline()).code(), absl::StatusCode::kCancelled);
  });
}

}  // namespace
}  // namespace pelton
