// Ranks whose tensors lie on GPUs, over the stand-in for NCCL, the CUDA runtime and the kernels.
#ifndef PELTON_BACKEND_TEST_GPU_H_
#define PELTON_BACKEND_TEST_GPU_H_

#include <cstdlib>
#include <latch>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/backend.h"
#include "backend/test_fixture_ranks.h"
#include "comm/reduction/cuda/mean_library.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {

class GpuTest : public testing::Test {
 protected:
  GpuTest() {
    // Among the test's runfiles.
    constexpr char kKernels[] = "algorithms/codec/cuda/stand_in/libpelton_kernels_stand_in.so";
    setenv("PELTON_CUDART_LIBRARY", stand_in::LibraryPath().c_str(), 1);
    setenv("PELTON_NCCL_LIBRARY", stand_in::LibraryPath().c_str(), 1);
    setenv("PELTON_KERNELS_LIBRARY", kKernels, 1);
    // Loaded before there are threads: the sanitizer does not see the loader's lock.
    EXPECT_EQ(stand_in_.open_count(), 0);
    EXPECT_TRUE(FindMeanKernel().ok());
  }
  // Whatever happened in a test, nothing stays behind.
  ~GpuTest() override {
    stand_in_.reset();
    EXPECT_EQ(stand_in_.open_count(), 0);
  }

  // As every rank, each on a thread with its backend and its number. They end together: there is
  // no barrier of the job, which may have failed.
  static void Run(int ranks, absl::FunctionRef<absl::Status(Backend&, float)> body) {
    std::latch end(ranks);
    const std::vector<absl::Status> results =
        RunFixtureRanks(ranks, [&](const BackendOptions& options) {
          ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
          const absl::Status status = body(*backend, static_cast<float>(options.rank.value()));
          end.arrive_and_wait();
          return status;
        });
    for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  }

  const stand_in::StandIn& stand_in_ = stand_in::StandIn::Get();
};

}  // namespace pelton

#endif  // PELTON_BACKEND_TEST_GPU_H_
