// Times oneCCL's allreduce as pelton_peer.cc times Pelton's: mpirun -n RANKS oneccl_peer BYTES...
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <oneapi/ccl.hpp>
#include <vector>

int main(int argc, char** argv) {
  ccl::init();
  MPI_Init(&argc, &argv);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  ccl::shared_ptr_class<ccl::kvs> kvs;
  ccl::kvs::address_type address;
  if (rank == 0) {
    kvs = ccl::create_main_kvs();
    address = kvs->get_address();
  }
  MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
  if (rank != 0) kvs = ccl::create_kvs(address);
  {
    auto communicator = ccl::create_communicator(ranks, rank, kvs);
    for (int s = 1; s < argc; ++s) {
      const size_t bytes = std::strtoull(argv[s], nullptr, 10);
      const int iterations =
          static_cast<int>(std::clamp<size_t>((size_t{1} << 29) / bytes, 7, 2000));
      std::vector<float> data(bytes / sizeof(float));
      std::vector<double> seconds;
      const int batch = bytes <= 65536 ? 20 : 1;
      for (int i = -(iterations / 10 + 2); i < iterations; i += batch) {
        const double begin = MPI_Wtime();
        for (int j = 0; j < batch; ++j) {
          ccl::allreduce(data.data(), data.data(), data.size(), ccl::reduction::sum, communicator)
              .wait();
        }
        if (i >= 0) seconds.push_back((MPI_Wtime() - begin) / batch);
      }
      std::sort(seconds.begin(), seconds.end());
      if (rank == 0) std::printf("%zu %.9f %.9f\n", bytes, seconds[seconds.size() / 2], seconds[0]);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
