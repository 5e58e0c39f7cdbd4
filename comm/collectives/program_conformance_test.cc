// Recipes over the sends and receives of three transports: as good as a transport of their own,
// but for the order of sums and what they say of ranks that disagree or are missing.
#include <utility>

#include "comm/collectives/test_program_transport.h"
#include "comm/transport/conformance_test.h"
#include "comm/transport/network/test_ranks.h"
#include "comm/transport/shm/test_transports.h"
#include "comm/transport/sim/sim_fabric.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "comm/transport/ucx/ucx_transport.h"
#include "core/base/sanitizer.h"

namespace pelton {
namespace {

class ProgramFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    std::vector<std::unique_ptr<Transport>> transports;
    for (auto& wire : MakeWires(world_size)) {
      transports.push_back(
          std::make_unique<TestProgramTransport>(std::move(wire), SelectionTable::Default()));
    }
    return transports;
  }
  TransportPromises promises() const override {
    return {.sums_in_rank_order = false,
            .survives_disagreement = false,
            .names_exactly_who_is_missing = false};
  }

 protected:
  virtual std::vector<std::unique_ptr<Transport>> MakeWires(WorldSize world_size) = 0;
};

class OverSim final : public ProgramFixture {
  std::vector<std::unique_ptr<Transport>> MakeWires(WorldSize world_size) override {
    fabric_ = std::make_unique<SimFabric>(world_size);
    return fabric_->MakeTransports();
  }
  std::unique_ptr<SimFabric> fabric_;
};

class OverShm final : public ProgramFixture {
  std::vector<std::unique_ptr<Transport>> MakeWires(WorldSize world_size) override {
    return shm::MakeTestTransports(world_size);
  }
};

template <TransportFactory kFactory>
class OverNetwork final : public ProgramFixture {
 public:
  TransportPromises promises() const override {
    TransportPromises promises = ProgramFixture::promises();
    promises.short_sends_learn_of_a_difference = false;
    return promises;
  }

 private:
  std::vector<std::unique_ptr<Transport>> MakeWires(WorldSize world_size) override {
    return network::MakeRanks(world_size, kFactory);
  }
};

INSTANTIATE_TEST_SUITE_P(ProgramSim, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<OverSim>));
INSTANTIATE_TEST_SUITE_P(ProgramShm, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<OverShm>));
INSTANTIATE_TEST_SUITE_P(ProgramTcp, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<OverNetwork<&MakeTcpTransport>>));
#if !PELTON_SANITIZED  // the same above the worker
INSTANTIATE_TEST_SUITE_P(ProgramUcx, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<OverNetwork<&MakeUcxTransport>>));
#endif

}  // namespace
}  // namespace pelton
