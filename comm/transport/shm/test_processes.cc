#include "comm/transport/shm/test_processes.h"

#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/base/sync.h"

namespace pelton::shm {
namespace {

constexpr int kMaxRanks = 256;
constexpr int kMaxKeys = 4;
constexpr absl::Duration kLongest = absl::Seconds(60);

// Memory that the forked ranks and the test share.
struct Board {
  struct Key {
    std::atomic<uint32_t> count;
    char values[kMaxRanks][512];
  };
  Key keys[kMaxKeys];
  std::atomic<uint32_t> marks[kMaxRanks];
  char results[kMaxRanks][1024];
};
Board* board = nullptr;

void CopyText(const std::string& text, char* target, size_t room) {
  const size_t length = std::min(text.size(), room - 1);
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

bool AwaitCount(std::atomic<uint32_t>& word, uint32_t count, absl::Time deadline) {
  for (uint32_t now = word.load(); now < count; now = word.load()) {
    if (absl::Now() >= deadline) return false;
    FutexWait(&word, now, deadline - absl::Now(), FutexScope::kShared);
  }
  return true;
}

// Threads: one. Owns: nothing.
class BoardBootstrap : public Bootstrap {
 public:
  BoardBootstrap(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string&, const std::string& value,
                                                     absl::Time deadline) override {
    Board::Key& key = board->keys[next_key_++];
    CopyText(value, key.values[rank_], sizeof key.values[rank_]);
    key.count.fetch_add(1);
    FutexWake(&key.count, kAllSleepers, FutexScope::kShared);
    if (!AwaitCount(key.count, world_size_, deadline)) {
      return absl::DeadlineExceededError("a rank did not come");
    }
    return std::vector<std::string>(key.values, key.values + world_size_);
  }

 private:
  const int rank_;
  const int world_size_;
  int next_key_ = 0;
};

[[noreturn]] void RunRank(int rank, int world_size, const Processes::Body& body) {
  BoardBootstrap bootstrap(rank, world_size);
  const std::string wrong =
      body({Rank(rank), WorldSize(world_size), "token", &bootstrap, absl::Now() + kLongest});
  CopyText(wrong, board->results[rank], sizeof board->results[rank]);
  _exit(wrong.empty() ? 0 : 1);
}

}  // namespace

Processes::Processes(int world_size, const Body& body) {
  PELTON_CHECK(world_size <= kMaxRanks);
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PELTON_CHECK(memory != MAP_FAILED);
  board = static_cast<Board*>(memory);
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = fork();
    PELTON_CHECK(pid >= 0);
    if (pid == 0) RunRank(rank, world_size, body);
    pids_.push_back(pid);
  }
}

Processes::~Processes() {
  for (const pid_t pid : pids_) {
    if (pid == 0) continue;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  munmap(board, sizeof(Board));
}

void Processes::AwaitMark(int rank, uint32_t count) {
  PELTON_CHECK(AwaitCount(board->marks[rank], count, absl::Now() + kLongest)) << "rank " << rank;
}

void Processes::Mark(int rank) {
  board->marks[rank].fetch_add(1);
  FutexWake(&board->marks[rank], kAllSleepers, FutexScope::kShared);
}

std::string Processes::Join(int rank) {
  int status = 0;
  if (pids_[rank] != 0) waitpid(pids_[rank], &status, 0);
  pids_[rank] = 0;
  if (WIFSIGNALED(status)) return absl::StrCat("rank ", rank, ": signal ", WTERMSIG(status));
  if (WEXITSTATUS(status) == 0) return "";
  return absl::StrCat("rank ", rank, ": ", board->results[rank]);
}

std::string Processes::JoinAll() {
  std::string all;
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    absl::StrAppend(&all, Join(static_cast<int>(rank)));
  }
  return all;
}

void ForbidReaders() {
  prctl(PR_SET_DUMPABLE, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  syscall(SYS_capset, &header, none);
}

absl::StatusOr<End> MakeEnd(const TransportOptions& options, TransportMaker make) {
  End end;
  ASSIGN_OR_RETURN(end.transport, make(options));
  ASSIGN_OR_RETURN(end.communicator,
                   end.transport->Open(CommunicatorId(1), Group::World(options.world_size),
                                       absl::Now() + kLongest));
  return end;
}

}  // namespace pelton::shm
