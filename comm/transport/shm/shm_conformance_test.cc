#include "comm/transport/conformance_test.h"
#include "comm/transport/shm/test_transports.h"

namespace pelton {
namespace {

class ShmFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    return shm::MakeTestTransports(world_size);
  }
};

INSTANTIATE_TEST_SUITE_P(Shm, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<ShmFixture>));

// Every collective runs as a program, as one does that there are no tasks for.
class ShmProgramsFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    return shm::MakeTestTransports(world_size, {});
  }
  TransportPromises promises() const override { return {.sums_in_rank_order = false}; }
};

INSTANTIATE_TEST_SUITE_P(ShmPrograms, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<ShmProgramsFixture>));

}  // namespace
}  // namespace pelton
