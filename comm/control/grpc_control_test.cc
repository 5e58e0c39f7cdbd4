#include "comm/control/grpc_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/control/conformance_test.h"
#include "comm/control/coordinator_server.h"
#include "comm/control/host_identity.h"
#include "comm/control/key_value.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton {
namespace {

constexpr char kToken[] = "0123456789abcdef";

// Threads: any. Owns: the server.
class GrpcFixture final : public ControlFixture {
 public:
  GrpcFixture() {
    auto server = CoordinatorServer::Start({.token = kToken});
    PELTON_CHECK_OK(server.status());
    server_ = *std::move(server);
  }
  std::unique_ptr<Control> MakeControl() override {
    return *MakeGrpcControl({.address = server_->address(), .token = kToken});
  }
  absl::Status AwaitEmpty(absl::Time deadline) override { return server_->AwaitEmpty(deadline); }

 private:
  std::unique_ptr<CoordinatorServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Grpc, ControlConformanceTest,
                         testing::Values([]() -> std::unique_ptr<ControlFixture> {
                           return std::make_unique<GrpcFixture>();
                         }));

TEST(GrpcControlTest, ASilenceMayLastLongerThanAnIntHasMilliseconds) {
  for (const absl::Duration silence : {absl::Hours(24 * 30), absl::InfiniteDuration()}) {
    auto server = CoordinatorServer::Start({.token = kToken, .heartbeat_timeout = silence});
    ASSERT_TRUE(server.ok()) << server.status();
    const auto control = *MakeGrpcControl(
        {.address = (*server)->address(), .token = kToken, .heartbeat_timeout = silence});
    JoinRequest request;
    request.job = "job";
    request.world_size = WorldSize(1);
    request.host = HostIdentity::OfThisProcess();
    const absl::Time deadline = Clock::Real().Now() + absl::Seconds(10);
    EXPECT_TRUE(control->Join(request, deadline).ok());
    KeyValueStore store(control.get());
    EXPECT_TRUE(store.Set("key", "value", deadline).ok());
  }
}

}  // namespace
}  // namespace pelton
