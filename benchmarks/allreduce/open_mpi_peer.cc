// Times MPI_Allreduce: mpirun -n RANKS open_mpi_peer CASE... See timing.h.
#include <mpi.h>

#include <vector>

#include "benchmarks/allreduce/timing.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const pelton::timing::Case& timed : pelton::timing::ParseCases(argv + 1, argv + argc)) {
    std::vector<float> data(timed.bytes / sizeof(float));
    pelton::timing::Time(timed, rank == 0, [&] {
      MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    });
  }
  MPI_Finalize();
  return 0;
}
