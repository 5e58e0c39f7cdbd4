// Which devices a process uses that uses one of them.
#include <memory>
#include <thread>

#include "absl/status/status.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "core/memory/cuda/cuda_queue.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

std::unique_ptr<const cuda::CudaRuntime> Load() {
  return *cuda::CudaRuntime::Load(stand_in::LibraryPath());
}

int CurrentDevice(const cuda::CudaRuntime& runtime) {
  int device = -1;
  runtime.calls().get_device(&device);
  return device;
}

// All threads begin at device 0, which belongs to another rank.
TEST(DeviceScopeTest, AThreadThatUsesOneDeviceMakesNoContextOnAnother) {
  const auto runtime = Load();
  std::thread([&] {
    const auto queue = CudaQueue::Create(*runtime, 1, [] { return nullptr; });
    ASSERT_TRUE(queue.ok()) << queue.status();
    EXPECT_TRUE((*queue)->Enqueue([](Stream&) { return absl::OkStatus(); }).ok());
  }).join();
  EXPECT_TRUE(runtime->HasContext(1));
  EXPECT_FALSE(runtime->HasContext(0));
}

TEST(DeviceScopeTest, ADeviceThatTheCallerHasUsedIsCurrentAgainAfterwards) {
  const auto runtime = Load();
  std::thread([&] {
    runtime->calls().set_device(3);
    {
      const cuda::DeviceScope outer(*runtime, 2);
      const cuda::DeviceScope inner(*runtime, 2);
      EXPECT_EQ(CurrentDevice(*runtime), 2);
    }
    EXPECT_EQ(CurrentDevice(*runtime), 3);
  }).join();
}

}  // namespace
}  // namespace pelton
