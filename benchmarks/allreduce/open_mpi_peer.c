/* Times MPI_Allreduce as pelton_peer.cc times Pelton's: mpirun -n RANKS open_mpi_peer BYTES... */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int iterations_of(size_t bytes) {
  const size_t iterations = ((size_t)1 << 29) / bytes;
  return (int)(iterations < 7 ? 7 : iterations > 2000 ? 2000 : iterations);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int s = 1; s < argc; ++s) {
    const size_t bytes = strtoull(argv[s], NULL, 10);
    const int iterations = iterations_of(bytes);
    float* data = malloc(bytes);
    double* seconds = malloc(sizeof(double) * iterations);
    memset(data, 0, bytes);
    const int batch = bytes <= 65536 ? 20 : 1;
    int samples = 0;
    for (int i = -(iterations / 10 + 2); i < iterations; i += batch) {
      const double begin = MPI_Wtime();
      for (int j = 0; j < batch; ++j) {
        MPI_Allreduce(MPI_IN_PLACE, data, (int)(bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
      }
      if (i >= 0) seconds[samples++] = (MPI_Wtime() - begin) / batch;
    }
    qsort(seconds, samples, sizeof(double), compare);
    if (rank == 0) printf("%zu %.9f %.9f\n", bytes, seconds[samples / 2], seconds[0]);
    fflush(stdout);
    free(seconds);
    free(data);
  }
  MPI_Finalize();
  return 0;
}
