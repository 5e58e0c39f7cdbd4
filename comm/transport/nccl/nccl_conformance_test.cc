#include <optional>
#include <utility>

#include "comm/transport/conformance_test.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/operation_map.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"

namespace pelton {
namespace {

// Over the stand-in, which reduces like the reference.
class NcclFixture : public TransportFixture {
 public:
  explicit NcclFixture(bool agree_first = false) : agree_first_(agree_first) {}

  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    const std::string path = stand_in::LibraryPath();
    world_.emplace(world_size, NcclOptions{path, path, std::nullopt, agree_first_, path});
    return std::move(world_->transports());
  }

  TransportPromises promises() const override {
    TransportPromises promises;
    promises.runs = [](OperationKind kind) { return nccl::kNcclKinds.Contains(kind); };
    promises.reduces = &nccl::Reduces;
    promises.has_tags = false;
    promises.neighbors_match_by_tag = false;
    promises.survives_disagreement = agree_first_;
    return promises;
  }

 private:
  const bool agree_first_;
  std::optional<GpuWorld> world_;
};

class AgreeingNcclFixture : public NcclFixture {
 public:
  AgreeingNcclFixture() : NcclFixture(true) {}
};

INSTANTIATE_TEST_SUITE_P(Nccl, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<NcclFixture>));
INSTANTIATE_TEST_SUITE_P(NcclAgreeFirst, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<AgreeingNcclFixture>));

}  // namespace
}  // namespace pelton
