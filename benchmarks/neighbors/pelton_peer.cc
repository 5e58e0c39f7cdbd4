// Times Pelton's neighbour averages between processes of this host, in C++. See run.py.
//
//   pelton_peer region|private RANKS GRAPH BYTES:ITERATIONS...
//
// GRAPH is ring or expo2. `region` averages memory that the ranks share, `private` memory of
// malloc; both into another tensor. The size "many" is 100 averages of 10 kB that are under way
// together. Prints "BYTES MEDIAN_SECONDS" of the slowest rank.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/await.h"
#include "comm/graph/graph_sequence.h"
#include "comm/neighbors.h"
#include "comm/transport/shm/shm_transport.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/memory/region.h"
#include "core/pipeline/weight_table.h"

namespace pelton {
namespace {

constexpr int kMostRanks = 64;
constexpr int kMany = 100;
constexpr size_t kManyBytes = 10'000;

absl::Time Soon() { return Clock::Real().Now() + absl::Seconds(60); }

// What the forked ranks share. Threads: one a rank. Owns: nothing.
struct Page {
  std::atomic<int> told;
  std::atomic<int> met;
  char values[kMostRanks][256];
  double medians[kMostRanks];
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

// Threads: a value. Owns: nothing.
struct Case {
  std::string size;
  int iterations = 0;

  bool is_many() const { return size == "many"; }
  size_t bytes() const { return is_many() ? kManyBytes : std::strtoull(size.c_str(), nullptr, 10); }
  int together() const { return is_many() ? kMany : 1; }
};

std::vector<Case> ParseCases(char** begin, char** end) {
  std::vector<Case> cases;
  for (char** word = begin; word != end; ++word) {
    const std::string text = *word;
    const size_t colon = text.find(':');
    PELTON_CHECK(colon != std::string::npos) << text;
    cases.push_back({text.substr(0, colon), std::atoi(text.c_str() + colon + 1)});
  }
  return cases;
}

// A rank, its communicator, and the memory that it averages. Threads: one. Owns: nothing.
struct Place {
  Page& page;
  int rank;
  int ranks;
  Communicator& communicator;
  const WeightTable& table;
  std::byte* source;
  std::byte* target;
};

void Meet(const Place& place) {
  const int before = place.page.met.fetch_add(1);
  const int all = (before / place.ranks + 1) * place.ranks;
  while (place.page.met.load() < all) sched_yield();
}

void Average(const Place& place, const Case& timed) {
  const size_t count = std::max<size_t>(timed.bytes() / sizeof(float), 1);
  std::vector<Completion> completions;
  for (int i = 0; i < timed.together(); ++i) {
    const size_t offset = static_cast<size_t>(i) * count * sizeof(float);
    auto completion =
        NeighborAllReduce(place.communicator, {place.source + offset, count, DType::kFloat32},
                          {place.target + offset, count, DType::kFloat32}, place.table);
    PELTON_CHECK(completion.ok()) << completion.status();
    completions.push_back(*completion);
  }
  for (const Completion completion : completions) {
    PELTON_CHECK_OK(Await(place.communicator, completion, Soon()));
  }
}

void Time(const Place& place, const Case& timed) {
  std::vector<double> seconds;
  Meet(place);
  for (int i = -timed.iterations / 10 - 2; i < timed.iterations; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    Average(place, timed);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i >= 0) seconds.push_back(took.count());  // the others warm up
  }
  std::sort(seconds.begin(), seconds.end());
  place.page.medians[place.rank] = seconds[seconds.size() / 2];
  Meet(place);
  if (place.rank != 0) return;
  const double slowest = *std::max_element(place.page.medians, place.page.medians + place.ranks);
  std::printf("%s %.9f\n", timed.size.c_str(), slowest);
  std::fflush(stdout);
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

std::shared_ptr<const WeightTable> TableOf(const std::string& graph, int rank, int ranks) {
  auto graphs = MakeGraphs(graph == "expo2" ? "exponential" : graph, WorldSize(ranks), {});
  PELTON_CHECK(graphs.ok()) << graphs.status();
  return WeightTable::Create((*graphs)->At(0).Of(Rank(rank))).value();
}

struct World {
  std::string memory;
  int ranks;
  std::string graph;
  std::vector<Case> cases;
};

void RunRank(int rank, const World& world, Page* page) {
  PageBootstrap bootstrap(page, rank, world.ranks);
  const WorldSize size(world.ranks);
  auto transport = MakeShmTransport({Rank(rank), size, "benchmark", &bootstrap, Soon()});
  PELTON_CHECK(transport.ok()) << transport.status();
  auto opened = (*transport)->Open(CommunicatorId(1), Group::World(size), Soon());
  PELTON_CHECK(opened.ok()) << opened.status();
  Pin(rank, world.ranks);  // after the transport has counted the cores
  size_t most = sizeof(float);
  for (const Case& timed : world.cases) {
    most = std::max(most, timed.bytes() * static_cast<size_t>(timed.together()));
  }
  const bool in_region = world.memory == "region";
  auto region = Region::Create(in_region ? 2 * most : 1, "benchmark").value();
  PELTON_CHECK_OK((*opened)->Register(*region));
  auto* const memory = in_region ? region->data() : static_cast<std::byte*>(std::malloc(2 * most));
  std::memset(memory, 0, 2 * most);
  const std::shared_ptr<const WeightTable> table = TableOf(world.graph, rank, world.ranks);
  const Place place{*page, rank, world.ranks, **opened, *table, memory, memory + most};
  for (const Case& timed : world.cases) Time(place, timed);
}

int Run(const World& world) {
  void* const page =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PELTON_CHECK(page != MAP_FAILED);
  for (int rank = 0; rank < world.ranks; ++rank) {
    if (fork() != 0) continue;
    RunRank(rank, world, static_cast<Page*>(page));
    std::exit(0);
  }
  int failures = 0;
  for (int status = 0; wait(&status) > 0;) failures += status != 0;
  return failures;
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  if (argc < 5 || std::atoi(argv[2]) > pelton::kMostRanks) {
    std::fprintf(stderr,
                 "usage: pelton_peer region|private RANKS ring|expo2 BYTES:ITERATIONS...\n");
    return 2;
  }
  return pelton::Run(
      {argv[1], std::atoi(argv[2]), argv[3], pelton::ParseCases(argv + 4, argv + argc)});
}
