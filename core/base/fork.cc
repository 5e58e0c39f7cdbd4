#include "core/base/fork.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/sync.h"

namespace pelton {
namespace {

std::atomic<bool> is_watching{false};
std::atomic<bool> is_forked_child{false};

struct Socket {
  int number;
  ino_t inode;
  bool operator==(const Socket&) const = default;
};

// Threads: any. Owns: the lists. Never destroyed, because threads outlive main.
struct Registry {
  Mutex mutex;
  std::vector<Socket> sockets ABSL_GUARDED_BY(mutex);
  size_t prune_at ABSL_GUARDED_BY(mutex) = 64;
  std::vector<uint16_t> ports ABSL_GUARDED_BY(mutex);
  std::vector<ForkSteps> steps ABSL_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

std::optional<Socket> SocketAt(int number) {
  struct stat what;
  if (fstat(number, &what) != 0 || !S_ISSOCK(what.st_mode)) return std::nullopt;
  return Socket{number, what.st_ino};
}

uint16_t PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family != AF_INET6) return 0;
  return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

bool HasPort(int socket, const std::vector<uint16_t>& ports) {
  for (const auto end : {&getsockname, &getpeername}) {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    if (end(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    const uint16_t port = PortOf(address);
    if (port != 0 && std::find(ports.begin(), ports.end(), port) != ports.end()) return true;
  }
  return false;
}

std::vector<int> OpenNumbers() {
  std::vector<int> numbers;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return numbers;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') numbers.push_back(std::atoi(entry->d_name));
  }
  closedir(folder);
  return numbers;
}

// The numbers stay taken: what the parent's objects would close must not be somebody else's.
void CloseSockets(const Registry& registry) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int number : OpenNumbers()) {
    const std::optional<Socket> socket = SocketAt(number);
    if (!socket.has_value()) continue;
    const bool is_ours = std::find(registry.sockets.begin(), registry.sockets.end(), *socket) !=
                         registry.sockets.end();
    if (is_ours || HasPort(number, registry.ports)) dup3(nothing, number, O_CLOEXEC);
  }
  close(nothing);
}

void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  TheRegistry().mutex.Lock();
  for (const ForkSteps& steps : TheRegistry().steps) steps.before();
}

void InParent() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  for (const ForkSteps& steps : TheRegistry().steps) steps.in_parent();
  TheRegistry().mutex.Unlock();
}

void InChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  const bool is_first = is_watching.load() && !is_forked_child.exchange(true);
  if (is_first) CloseSockets(TheRegistry());
  for (const ForkSteps& steps : TheRegistry().steps) steps.in_child(is_first);
  TheRegistry().mutex.Unlock();
}

void TakeStepsAtForks() {
  static const int installed [[maybe_unused]] = pthread_atfork(&BeforeFork, &InParent, &InChild);
}

}  // namespace

void WatchForks() {
  is_watching.store(true);
  TakeStepsAtForks();
}

bool IsForkedChild() { return is_forked_child.load(std::memory_order_relaxed); }

absl::Status CheckNotForkedChild() {
  if (!IsForkedChild()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", getpid(),
      " was forked from one that is a rank of a job, and is none itself: communicate in the "
      "parent, "
      "fork before init_process_group, or start the process by multiprocessing's 'spawn'"));
}

void CloseInChildren(int socket) {
  const std::optional<Socket> found = SocketAt(socket);
  if (!found.has_value()) return;
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mutex);
  if (registry.sockets.size() >= registry.prune_at) {
    std::erase_if(registry.sockets, [](const Socket& old) { return SocketAt(old.number) != old; });
    registry.prune_at = 2 * registry.sockets.size() + 64;
  }
  registry.sockets.push_back(*found);
}

void ClosePortInChildren(uint16_t port) {
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mutex);
  const bool is_known =
      std::find(registry.ports.begin(), registry.ports.end(), port) != registry.ports.end();
  if (port != 0 && !is_known) registry.ports.push_back(port);
}

void AddForkSteps(ForkSteps steps) {
  TakeStepsAtForks();
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mutex);
  registry.steps.push_back(steps);
}

// The live ones of this process. A registry in the sense of the style guide.
// Threads: any. Owns: its index, not what is in it.
class PrivateInChildrenTable {
 public:
  static PrivateInChildrenTable& Get() {
    static PrivateInChildrenTable* const table = [] {
      AddForkSteps({.before = [] { Get().LockForFork(); },
                    .in_parent = [] { Get().UnlockAfterFork(); },
                    .in_child = [](bool is_first) { Get().BePrivate(is_first); }});
      return new PrivateInChildrenTable;  // outlives every mapping
    }();
    return *table;
  }

  void Insert(const PrivateInChildren* memory) {
    MutexLock lock(&mutex_);
    live_.insert(memory);
  }

  void Erase(const PrivateInChildren* memory) {
    MutexLock lock(&mutex_);
    live_.erase(memory);
  }

 private:
  // None comes or goes while the process forks.
  void LockForFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void UnlockAfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

  // A child of a child has its parent's copy already, and would lose what is written there.
  void BePrivate(bool is_first) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const PrivateInChildren* memory : live_) {
      if (!is_first) break;
      mmap(memory->data_, memory->size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED,
           memory->descriptor_, 0);
    }
    mutex_.Unlock();
  }

  Mutex mutex_;
  std::set<const PrivateInChildren*> live_ ABSL_GUARDED_BY(mutex_);
};

PrivateInChildren::PrivateInChildren(void* data, size_t size_bytes, int descriptor)
    : data_(data), size_bytes_(size_bytes), descriptor_(descriptor) {
  PrivateInChildrenTable::Get().Insert(this);
}

PrivateInChildren::~PrivateInChildren() { PrivateInChildrenTable::Get().Erase(this); }

}  // namespace pelton
