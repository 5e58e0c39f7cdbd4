#include "comm/control/grpc_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/control/conformance_test.h"
#include "comm/control/coordinator_server.h"
#include "core/base/check.h"

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

}  // namespace
}  // namespace pelton
