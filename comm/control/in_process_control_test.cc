#include "comm/control/in_process_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/control/conformance_test.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

// Threads: any. Owns: the coordinator.
class InProcessFixture final : public ControlFixture {
 public:
  std::unique_ptr<Control> MakeControl() override { return coordinator_->MakeControl(); }
  absl::Status AwaitEmpty(absl::Time deadline) override {
    // Nothing of a rank outlasts the call that ends it.
    if (coordinator_->rank_count() == 0) return absl::OkStatus();
    return absl::DeadlineExceededError("ranks remain");
  }

 private:
  std::unique_ptr<InProcessCoordinator> coordinator_ = InProcessCoordinator::Make(Clock::Real());
};

INSTANTIATE_TEST_SUITE_P(InProcess, ControlConformanceTest,
                         testing::Values([]() -> std::unique_ptr<ControlFixture> {
                           return std::make_unique<InProcessFixture>();
                         }));

}  // namespace
}  // namespace pelton
