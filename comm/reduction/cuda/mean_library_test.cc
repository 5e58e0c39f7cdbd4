#include "comm/reduction/cuda/mean_library.h"

#include <cstdlib>

#include "gmock/gmock.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;

TEST(MeanLibraryTest, NamesTheLibraryThatIsMissing) {
  const auto kernel = FindMeanKernel("/nowhere/libpelton_kernels.so");
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(kernel.status().message()), HasSubstr("kernels for GPUs: "));
  EXPECT_THAT(std::string(kernel.status().message()), HasSubstr("/nowhere/libpelton_kernels.so"));
}

TEST(MeanLibraryTest, NamesTheKernelThatALibraryLacks) {
  setenv("PELTON_KERNELS_LIBRARY", "libc.so.6", 1);
  const auto kernel = FindMeanKernel();
  unsetenv("PELTON_KERNELS_LIBRARY");
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(kernel.status().message()), HasSubstr("have no pelton_weighted_mean"));
}

}  // namespace
}  // namespace pelton
