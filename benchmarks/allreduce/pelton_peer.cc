// Times Pelton's allreduce between processes of this host, in C++. See run.py.
//
//   pelton_peer region|private|copy RANKS CASE...
//
// See timing.h for the cases and what is printed. `region` reduces memory that the ranks
// share, `private` memory of malloc, both in place; `copy` is one memcpy of as many bytes, to tell
// what the machine can do.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "benchmarks/allreduce/timing.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/shm/shm_transport.h"
#include "core/base/check.h"

namespace pelton {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);

using timing::Case;

// The forked ranks exchange their addresses here. Threads: one per rank. Owns: the shared page.
class Page : public Bootstrap {
 public:
  explicit Page(int ranks) : ranks_(ranks) {
    void* memory =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PELTON_CHECK(memory != MAP_FAILED);
    board_ = static_cast<Board*>(memory);
  }
  void set_rank(int rank) { rank_ = rank; }

  absl::StatusOr<std::vector<std::string>> AllGather(const std::string&, const std::string& value,
                                                     absl::Time deadline) override {
    PELTON_CHECK(value.size() < sizeof board_->values[0]);
    std::memcpy(board_->values[rank_], value.c_str(), value.size() + 1);
    board_->count.fetch_add(1);
    while (board_->count.load() < ranks_) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("a rank did not come");
      usleep(100);  // ALLOW: before the measurement, between processes without a runtime
    }
    return std::vector<std::string>(board_->values, board_->values + ranks_);
  }

 private:
  struct Board {
    std::atomic<int> count;
    char values[64][256];
  };
  const int ranks_;
  int rank_ = 0;
  Board* board_;
};

size_t MostBytes(const std::vector<Case>& cases) {
  size_t most = 0;
  for (const Case& timed : cases) most = std::max(most, timed.bytes);
  return most;
}

// A core per rank where there are enough, as mpirun does by default.
void Pin(int rank, int ranks) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || rank-- > 0) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

void RunRank(int rank, int ranks, bool in_region, const std::vector<Case>& cases, Page& page) {
  page.set_rank(rank);
  const absl::Time deadline = absl::Now() + kTimeout;
  auto transport = MakeShmTransport({Rank(rank), WorldSize(ranks), "benchmark", &page, deadline});
  PELTON_CHECK(transport.ok()) << transport.status();
  auto opened = (*transport)->Open(CommunicatorId(1), Group::World(WorldSize(ranks)), deadline);
  PELTON_CHECK(opened.ok()) << opened.status();
  Communicator& communicator = **opened;
  Pin(rank, ranks);  // after the transport has counted the cores
  const size_t most = MostBytes(cases);
  auto region = Region::Create(in_region ? most : 1, "benchmark").value();
  PELTON_CHECK_OK(communicator.Register(*region));
  void* const data = in_region ? region->data() : std::malloc(most);
  std::memset(data, 0, most);
  for (const Case& timed : cases) {
    const Tensor tensor{data, timed.bytes / sizeof(float), DType::kFloat32};
    timing::Time(timed, rank == 0, [&] {
      auto completion = AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
      PELTON_CHECK(completion.ok()) << completion.status();
      PELTON_CHECK_OK(Await(communicator, *completion, absl::Now() + kTimeout));
    });
  }
}

int Run(const std::string& what, int ranks, const std::vector<Case>& cases) {
  if (what == "copy") {
    const size_t most = MostBytes(cases);
    std::vector<char> from(most, 1);
    std::vector<char> to(most, 2);
    for (const Case& timed : cases) {
      timing::Time(timed, true, [&] { std::memcpy(to.data(), from.data(), timed.bytes); });
    }
    return 0;
  }
  Page page(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    RunRank(rank, ranks, what == "region", cases, page);
    std::exit(0);
  }
  int failures = 0;
  for (int status = 0; wait(&status) > 0;) failures += status != 0;
  return failures;
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: pelton_peer region|private|copy RANKS CASE...\n");
    return 2;
  }
  return pelton::Run(argv[1], std::atoi(argv[2]),
                     pelton::timing::ParseCases(argv + 3, argv + argc));
}
