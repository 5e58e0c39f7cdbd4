// The same averages by Open MPI: MPI_Neighbor_allgather on a distributed graph, and the weighted
// sum.
//
//   mpirun -n N open_mpi GRAPH BYTES:ITERATIONS...
//
// GRAPH is ring or expo2. Prints "BYTES MEDIAN_SECONDS" of the slowest rank.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

namespace {

// Whom `rank` sends to.
std::vector<int> DestinationsOf(const std::string& graph, int rank, int size) {
  std::set<int> found;
  if (graph == "ring") found = {(rank + 1) % size, (rank + size - 1) % size};
  for (int d = 1; graph == "expo2" && d < size; d *= 2) found.insert((rank + d) % size);
  found.erase(rank);
  return {found.begin(), found.end()};
}

std::vector<int> SourcesOf(const std::string& graph, int rank, int size) {
  std::vector<int> found;
  for (int other = 0; other < size; ++other) {
    const std::vector<int> to = DestinationsOf(graph, other, size);
    if (std::find(to.begin(), to.end(), rank) != to.end()) found.push_back(other);
  }
  return found;
}

struct Buffers {
  std::vector<float> mine, gathered, result;
};

void Average(MPI_Comm graph, size_t sources, Buffers& buffers) {
  const size_t count = buffers.mine.size();
  MPI_Neighbor_allgather(buffers.mine.data(), static_cast<int>(count), MPI_FLOAT,
                         buffers.gathered.data(), static_cast<int>(count), MPI_FLOAT, graph);
  const float weight = 1.0F / static_cast<float>(sources + 1);
  for (size_t i = 0; i < count; ++i) {
    float sum = buffers.mine[i];
    for (size_t s = 0; s < sources; ++s) sum += buffers.gathered[s * count + i];
    buffers.result[i] = sum * weight;
  }
}

double MedianOf(MPI_Comm graph, size_t sources, size_t bytes, int iterations) {
  const size_t count = std::max<size_t>(bytes / sizeof(float), 1);
  Buffers buffers{std::vector<float>(count, 1), std::vector<float>(count * sources),
                  std::vector<float>(count)};
  std::vector<double> seconds;
  MPI_Barrier(MPI_COMM_WORLD);
  for (int i = -iterations / 10 - 2; i < iterations; ++i) {
    const double begin = MPI_Wtime();
    Average(graph, sources, buffers);
    if (i >= 0) seconds.push_back(MPI_Wtime() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  double median = seconds[seconds.size() / 2];
  double slowest = 0;
  MPI_Allreduce(&median, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::vector<int> sources = SourcesOf(argv[1], rank, size);
  const std::vector<int> destinations = DestinationsOf(argv[1], rank, size);
  MPI_Comm graph;
  MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, static_cast<int>(sources.size()), sources.data(),
                                 MPI_UNWEIGHTED, static_cast<int>(destinations.size()),
                                 destinations.data(), MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &graph);
  for (int i = 2; i < argc; ++i) {
    char* end = nullptr;
    const size_t bytes = std::strtoull(argv[i], &end, 10);
    const double median = MedianOf(graph, sources.size(), bytes, std::atoi(end + 1));
    if (rank == 0) std::printf("%zu %.9f\n", bytes, median);
  }
  MPI_Finalize();
}
