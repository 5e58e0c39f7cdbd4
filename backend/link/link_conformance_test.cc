// Communicators that daemons drive for their trainers pass the suite of every transport.
#include <memory>
#include <thread>
#include <vector>

#include "backend/link/attach.h"
#include "backend/link/test_daemons.h"
#include "comm/transport/conformance_test.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

class LinkFixture : public TransportFixture {
 public:
  std::vector<std::unique_ptr<Transport>> Make(WorldSize world_size) override {
    const int count = world_size.value();
    daemons_ = std::make_unique<TestDaemons>(count);
    parts_.resize(count);
    std::vector<std::thread> attaching;
    for (int rank = 0; rank < count; ++rank) {
      attaching.emplace_back([this, rank, world_size] {
        auto parts = AttachToDaemon({daemons_->PathOf(rank), "default", Rank(rank), world_size},
                                    Clock::Real().Now() + absl::Seconds(20));
        PELTON_CHECK_OK(parts.status());
        parts_[rank] = *std::move(parts);
      });
    }
    for (std::thread& thread : attaching) thread.join();
    std::vector<std::unique_ptr<Transport>> transports;
    for (LinkedParts& parts : parts_) transports.push_back(std::move(parts.transport));
    return transports;
  }

 private:
  std::unique_ptr<TestDaemons> daemons_;
  std::vector<LinkedParts> parts_;  // their controls
};

INSTANTIATE_TEST_SUITE_P(Link, TransportConformanceTest,
                         testing::Values(&MakeTransportFixture<LinkFixture>));

}  // namespace
}  // namespace pelton
