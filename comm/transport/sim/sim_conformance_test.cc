#include "comm/transport/conformance_test.h"
#include "comm/transport/sim/sim_fabric.h"

namespace pelton {
namespace {

// In real time: every rank has a thread, and bytes arrive at once.
class SimFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    fabric_ = std::make_unique<SimFabric>(world_size, options_);
    return fabric_->MakeTransports();
  }

 protected:
  SimOptions options_;

 private:
  std::unique_ptr<SimFabric> fabric_;
};

// The same over slow and uneven wires.
class SlowSimFixture : public SimFixture {
 public:
  SlowSimFixture() {
    options_.link = {absl::Microseconds(20), 4e9, absl::Microseconds(30)};
    options_.seed = 1;
  }
};

// The same, and every collective runs as a program, as one does that the fabric does not know.
class SimProgramsFixture : public SlowSimFixture {
 public:
  SimProgramsFixture() { options_.native_kinds = {}; }
  TransportPromises promises() const override { return {.sums_in_rank_order = false}; }
};

INSTANTIATE_TEST_SUITE_P(Sim, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<SimFixture>));
INSTANTIATE_TEST_SUITE_P(SlowSim, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<SlowSimFixture>));
INSTANTIATE_TEST_SUITE_P(SimPrograms, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<SimProgramsFixture>));

}  // namespace
}  // namespace pelton
