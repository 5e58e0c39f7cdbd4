#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "backend/link/shared_places.h"
#include "core/base/fork.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr size_t kSizeBytes = 1 << 16;

// Two of one memory, as a trainer and its daemon have it: the daemon's file is `daemon`.
std::unique_ptr<PrivateMapping> Make(Descriptor* daemon = nullptr) {
  absl::StatusOr<Descriptor> memory = shm::NewSharedMemory(kSizeBytes, "test");
  if (!memory.ok()) return nullptr;
  if (daemon != nullptr) *daemon = Descriptor(fcntl(memory->get(), F_DUPFD_CLOEXEC, 0));
  return *PrivateMapping::Of(*std::move(memory));
}

// Whether `body` holds in a forked child.
bool HoldsInChild(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int InFile(const Descriptor& file, size_t at) {
  unsigned char byte = 0;
  return pread(file.get(), &byte, 1, static_cast<off_t>(at)) == 1 ? byte : -1;
}

TEST(PrivateMappingTest, AChildHasACopyOfItsOwn) {
  WatchForks();
  Descriptor daemon;
  const std::unique_ptr<PrivateMapping> mapping = Make(&daemon);
  ASSERT_NE(mapping, nullptr);
  mapping->data()[0] = std::byte{3};
  ASSERT_EQ(InFile(daemon, 0), 3);
  EXPECT_TRUE(HoldsInChild([&] {
    const bool has_the_parents = mapping->data()[0] == std::byte{3};
    mapping->data()[0] = mapping->data()[kSizeBytes - 1] = std::byte{99};
    return has_the_parents;
  }));
  EXPECT_EQ(mapping->data()[0], std::byte{3});
  EXPECT_EQ(mapping->data()[kSizeBytes - 1], std::byte{0});
  EXPECT_EQ(InFile(daemon, kSizeBytes - 1), 0);
  mapping->data()[0] = std::byte{4};  // the parent's is still the daemon's
  EXPECT_EQ(InFile(daemon, 0), 4);
}

TEST(PrivateMappingTest, AChildsChildHasWhatTheChildWrote) {
  WatchForks();
  const std::unique_ptr<PrivateMapping> mapping = Make();
  ASSERT_NE(mapping, nullptr);
  EXPECT_TRUE(HoldsInChild([&] {
    mapping->data()[0] = std::byte{7};
    const bool has_it = HoldsInChild([&] {
      const bool has_the_childs = mapping->data()[0] == std::byte{7};
      mapping->data()[0] = std::byte{8};
      return has_the_childs;
    });
    return has_it && mapping->data()[0] == std::byte{7};
  }));
  EXPECT_EQ(mapping->data()[0], std::byte{0});
}

TEST(PrivateMappingTest, AProcessMayForkWhileMappingsComeAndGo) {
  WatchForks();
  const std::unique_ptr<PrivateMapping> mapping = Make();
  ASSERT_NE(mapping, nullptr);
  std::atomic<bool> is_over = false;
  std::thread other([&] {
    while (!is_over.load()) Make().reset();
  });
  for (int i = 0; i < 50; ++i) {
    EXPECT_TRUE(HoldsInChild([&] {
      mapping->data()[0] = std::byte{9};
      return mapping->data()[0] == std::byte{9};
    }));
    EXPECT_EQ(mapping->data()[0], std::byte{0});
  }
  is_over.store(true);
  other.join();
}

}  // namespace
}  // namespace pelton
