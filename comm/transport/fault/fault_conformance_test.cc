// With Progress skipped at random a transport is slower, and otherwise just as good.
#include "comm/transport/conformance_test.h"
#include "comm/transport/fault/fault_transport.h"
#include "comm/transport/sim/sim_fabric.h"

namespace pelton {
namespace {

class SkippingFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    fabric_ = std::make_unique<SimFabric>(world_size);
    std::vector<std::unique_ptr<Transport>> transports;
    for (auto& transport : fabric_->MakeTransports()) {
      transports.push_back(std::make_unique<FaultTransport>(
          std::move(transport), FaultScript{.seed = 1, .skip_progress = 0.5}));
    }
    return transports;
  }

 private:
  std::unique_ptr<SimFabric> fabric_;
};

INSTANTIATE_TEST_SUITE_P(Fault, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<SkippingFixture>));

}  // namespace
}  // namespace pelton
