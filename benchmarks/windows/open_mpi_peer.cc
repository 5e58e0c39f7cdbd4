// Times MPI_Put and a local sum: mpirun -n RANKS open_mpi_peer allocated|own BYTES... The pattern
// of pelton_peer.cc: a ring, a put to the next rank, completed there by unlocking. Puts go to
// memory that MPI has allocated, or to the program's own.
#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "benchmarks/windows/timing.h"

namespace {

void TimeSize(const pelton::timing::Place& place, bool in_own_memory, size_t bytes) {
  const size_t count = bytes / sizeof(float);
  std::vector<float> tensor(count, 1);
  std::vector<float> own(in_own_memory ? count : 0);
  float* buffer = own.data();
  MPI_Win window;
  const auto size = static_cast<MPI_Aint>(bytes);
  if (in_own_memory) {
    MPI_Win_create(buffer, size, sizeof(float), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
  } else {
    MPI_Win_allocate(size, sizeof(float), MPI_INFO_NULL, MPI_COMM_WORLD, &buffer, &window);
  }
  std::memset(buffer, 0, bytes);
  const int next = (place.rank + 1) % place.ranks;
  const auto put = [&] {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, window);
    MPI_Put(tensor.data(), static_cast<int>(count), MPI_FLOAT, next, 0, static_cast<int>(count),
            MPI_FLOAT, window);
    MPI_Win_unlock(next, window);
  };
  // Under a lock of its own, because else a put may be half done.
  const auto update = [&] {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, place.rank, 0, window);
    for (size_t i = 0; i < count; ++i) tensor[i] = 0.5F * tensor[i] + 0.5F * buffer[i];
    MPI_Win_unlock(place.rank, window);
  };
  pelton::timing::Time(place, "put", bytes, put);
  pelton::timing::Time(place, "update", bytes, update);
  pelton::timing::Time(place, "put+update", bytes, [&] {
    put();
    update();
  });
  MPI_Win_free(&window);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  pelton::timing::Board* board = nullptr;
  MPI_Win shared;
  const MPI_Aint room = rank == 0 ? sizeof(*board) : 0;
  MPI_Win_allocate_shared(room, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &board, &shared);
  MPI_Aint size = 0;
  int unit = 0;
  MPI_Win_shared_query(shared, 0, &size, &unit, &board);
  if (rank == 0) std::memset(static_cast<void*>(board), 0, sizeof(*board));
  MPI_Barrier(MPI_COMM_WORLD);
  int meetings = 0;
  const bool in_own_memory = argc > 1 && std::strcmp(argv[1], "own") == 0;
  for (int i = 2; i < argc; ++i) {
    TimeSize({board, rank, ranks, &meetings}, in_own_memory, std::strtoull(argv[i], nullptr, 10));
  }
  MPI_Win_free(&shared);
  MPI_Finalize();
  return 0;
}
