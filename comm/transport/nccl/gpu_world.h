// A world of GPUs for tests: ranks in threads, their hosts over the sim transport.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_WORLD_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_WORLD_H_

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/await.h"
#include "comm/communicator.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {

// Threads: one. Owns: the hosts' transports and the GPUs'.
class GpuWorld {
 public:
  // What joins the hosts, of the simulated wire of a rank.
  using JoinHosts = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport>, Rank)>;

  // Rank r uses device r if `one_device_each`, else all the options' one. `join_hosts`: null: the
  // wire alone.
  GpuWorld(WorldSize world_size, NcclOptions options, bool one_device_each = true,
           const JoinHosts& join_hosts = nullptr)
      : fabric_(world_size), hosts_(fabric_.MakeTransports()) {
    for (int32_t r = 0; r < world_size.value(); ++r) {
      if (join_hosts != nullptr) {
        hosts_[Index(r)] = join_hosts(std::move(hosts_[Index(r)]), Rank(r));
      }
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

// Puts what comes later on `stream` behind `completion`. Blocks: until the operation is on its way
// to the device, which it is not while NCCL connects.
inline absl::Status PutBehind(Communicator& communicator, Completion completion, Stream& stream) {
  OperationRunner::State state;
  const auto is_behind = [&] {
    state = communicator.Follow(completion, stream);
    return state.done;
  };
  if (DriveUntil(communicator, is_behind, Clock::Real().Now() + absl::Seconds(60))) {
    return state.status;
  }
  return absl::DeadlineExceededError("the operation is not on the device yet");
}

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_WORLD_H_
