// Times windows between processes of this host, in C++: pelton_peer RANKS BYTES... See run.py.
//
// Ranks are a ring, each puts to the next one; all of them at once. "copy" is a memcpy of as many
// bytes inside each rank, to tell what the machine can do.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "benchmarks/windows/timing.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/window/create_window.h"
#include "comm/window/peer_processes.h"
#include "comm/window/window.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(60); }

// What the forked ranks share. Threads: one a rank. Owns: nothing.
struct Page {
  std::atomic<int> told;
  char values[timing::kMostRanks][256];
  timing::Board board;
};

// Threads: one. Owns: nothing.
class PageBootstrap final : public Bootstrap {
 public:
  PageBootstrap(Page* page, int rank, int ranks) : page_(*page), rank_(rank), ranks_(ranks) {}
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string&, const std::string& value,
                                                     absl::Time) override {
    PELTON_CHECK(value.size() < sizeof page_.values[0]);
    std::memcpy(page_.values[rank_], value.c_str(), value.size() + 1);
    page_.told.fetch_add(1);
    while (page_.told.load() < ranks_) sched_yield();
    return std::vector<std::string>(page_.values, page_.values + ranks_);
  }

 private:
  Page& page_;
  const int rank_;
  const int ranks_;
};

void TimeSize(const timing::Place& place, Communicator& communicator,
              const std::shared_ptr<const PeerProcesses>& processes, size_t bytes) {
  std::vector<float> tensor(bytes / sizeof(float), 1);
  std::vector<float> other(tensor.size(), 2);
  const Neighbor next{Rank((place.rank + 1) % place.ranks), 1};
  const Neighbor last{Rank((place.rank + place.ranks - 1) % place.ranks), 0.5};
  WindowOptions options;
  options.name = std::to_string(bytes);
  options.tensor = {tensor.data(), tensor.size(), DType::kFloat32};
  options.sources = {last.rank};
  options.destinations = {next.rank};
  auto window = CreateWindow(communicator, processes, options, Soon());
  PELTON_CHECK(window.ok()) << window.status();
  const auto put = [&] { PELTON_CHECK_OK((*window)->Put(options.tensor, {&next, 1}, 1, {})); };
  const auto update = [&] {
    PELTON_CHECK_OK((*window)->UpdateFromInlets({.own_weight = 0.5, .sources = {&last, 1}}, {}));
  };
  timing::Time(place, "copy", bytes, [&] { std::memcpy(other.data(), tensor.data(), bytes); });
  timing::Time(place, "put", bytes, put);
  timing::Time(place, "update", bytes, update);
  timing::Time(place, "put+update", bytes, [&] {
    put();
    update();
  });
  place.board->Meet(place.ranks, ++*place.meetings);
}

void RunRank(int rank, int ranks, const std::vector<size_t>& sizes, Page* page) {
  PageBootstrap bootstrap(page, rank, ranks);
  auto transport =
      MakeShmTransport({Rank(rank), WorldSize(ranks), "benchmark", &bootstrap, Soon()});
  PELTON_CHECK(transport.ok()) << transport.status();
  auto opened = (*transport)->Open(CommunicatorId(1), Group::World(WorldSize(ranks)), Soon());
  PELTON_CHECK(opened.ok()) << opened.status();
  auto processes = PeerProcesses::Meet(**opened, Soon());
  PELTON_CHECK(processes.ok()) << processes.status();
  int meetings = 0;
  const timing::Place place{&page->board, rank, ranks, &meetings};
  for (const size_t bytes : sizes) TimeSize(place, **opened, *processes, bytes);
}

int Run(int ranks, const std::vector<size_t>& sizes) {
  void* const memory =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PELTON_CHECK(memory != MAP_FAILED);
  Page* const page = static_cast<Page*>(memory);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    RunRank(rank, ranks, sizes, page);
    std::exit(0);
  }
  int failures = 0;
  for (int status = 0; wait(&status) > 0;) failures += status != 0;
  return failures;
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 2; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  if (sizes.empty() || ranks < 2 || ranks > pelton::timing::kMostRanks) {
    std::fprintf(stderr, "usage: pelton_peer RANKS BYTES...\n");
    return 2;
  }
  return pelton::Run(ranks, sizes);
}
