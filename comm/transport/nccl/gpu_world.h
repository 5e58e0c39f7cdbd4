// A world of GPUs for tests: ranks in threads, their hosts over the sim transport.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_WORLD_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_WORLD_H_

#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {

// Threads: one. Owns: the hosts' transports and the GPUs'.
class GpuWorld {
 public:
  // Rank r uses device r if `one_device_each`, else all the options' one.
  GpuWorld(WorldSize world_size, NcclOptions options, bool one_device_each = true)
      : fabric_(world_size), hosts_(fabric_.MakeTransports()) {
    for (int32_t r = 0; r < world_size.value(); ++r) {
      if (one_device_each) options.device = r;
      auto made =
          MakeNcclTransport({Rank(r), world_size, "token", nullptr,
                             Clock::Real().Now() + absl::Seconds(60), hosts_[Index(r)].get()},
                            options);
      PELTON_CHECK(made.ok()) << made.status();
      transports_.push_back(*std::move(made));
    }
  }

  SimFabric& hosts() { return fabric_; }
  Transport& transport(int32_t rank) { return *transports_[Index(rank)]; }
  std::vector<std::unique_ptr<Transport>>& transports() { return transports_; }

  // Calls `body` for every rank at once, each in a thread of its own.
  void RunTransports(absl::FunctionRef<void(Transport&, Rank)> body) {
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < fabric_.world_size().value(); ++r) {
      threads.emplace_back([&, r] { body(transport(r), Rank(r)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // The same with a communicator of all ranks.
  void Run(absl::FunctionRef<void(Communicator&)> body) {
    RunTransports([&](Transport& transport, Rank) {
      auto opened = transport.Open(CommunicatorId(1), Group::World(fabric_.world_size()),
                                   Clock::Real().Now() + absl::Seconds(60));
      PELTON_CHECK(opened.ok()) << opened.status();
      body(**opened);
    });
  }

 private:
  static size_t Index(int32_t rank) { return static_cast<size_t>(rank); }

  SimFabric fabric_;
  std::vector<std::unique_ptr<Transport>> hosts_;
  std::vector<std::unique_ptr<Transport>> transports_;
};

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_WORLD_H_
