// Times oneCCL's allreduce: mpirun -n RANKS oneccl_peer CASE... See timing.h.
#include <mpi.h>

#include <oneapi/ccl.hpp>
#include <vector>

#include "benchmarks/allreduce/timing.h"

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
    for (const pelton::timing::Case& timed : pelton::timing::ParseCases(argv + 1, argv + argc)) {
      std::vector<float> data(timed.bytes / sizeof(float));
      pelton::timing::Time(timed, rank == 0, [&] {
        ccl::allreduce(data.data(), data.data(), data.size(), ccl::reduction::sum, communicator)
            .wait();
      });
    }
  }
  MPI_Finalize();
  return 0;
}
