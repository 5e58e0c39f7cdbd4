// Four ranks add up a vector through shared memory: Pelton's C++ runtime without PyTorch or Python.
// The ranks are threads here; as processes they would take MakeGrpcControl in MakeControl's place.
#include <cstdio>
#include <thread>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/control/in_process_control.h"
#include "comm/transport/transport.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace {

constexpr pelton::WorldSize kRanks{4};

absl::Status RunRank(pelton::Control& control, pelton::Rank rank, std::vector<float>& values) {
  const absl::Time deadline = pelton::Clock::Real().Now() + absl::Seconds(30);
  const pelton::JoinRequest join = {.job = "sum", .rank = rank, .world_size = kRanks, .host = {}};
  RETURN_IF_ERROR(control.Join(join, deadline).status());
  ASSIGN_OR_RETURN(auto shm, pelton::TransportRegistry::Get().Find("shm"));
  ASSIGN_OR_RETURN(auto transport,
                   shm.factory({rank, kRanks, "a secret of the job", &control, deadline}));
  const pelton::CommunicatorId id(1);
  ASSIGN_OR_RETURN(auto ranks, transport->Open(id, pelton::Group::World(kRanks), deadline));

  const pelton::Tensor tensor = {values.data(), values.size(), pelton::DType::kFloat32};
  ASSIGN_OR_RETURN(auto done, AllReduce(*ranks, tensor, tensor, pelton::ReduceOp::kSum));
  RETURN_IF_ERROR(Await(*ranks, done, deadline));
  return control.Leave(deadline);
}

}  // namespace

int main() {
  auto coordinator = pelton::InProcessCoordinator::Make(pelton::Clock::Real());
  std::vector<std::vector<float>> values;
  std::vector<absl::Status> statuses(kRanks.value());
  for (int i = 0; i < kRanks.value(); ++i) values.emplace_back(1 << 20, 1.0f + i);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kRanks.value(); ++i) {
    threads.emplace_back(
        [&, i] { statuses[i] = RunRank(*coordinator->MakeControl(), pelton::Rank(i), values[i]); });
  }
  threads.clear();  // joins them
  for (int i = 0; i < kRanks.value(); ++i) {
    std::printf("rank %d: %s, sum %g\n", i, statuses[i].ToString().c_str(), values[i].back());
    if (!statuses[i].ok() || values[i] != std::vector<float>(1 << 20, 10.0f)) return 1;
  }
}
