// What becomes of other messages when a worker gives one up.
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/transport/network/point_to_point.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/network/worker.h"
#include "core/base/ids.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"
#include "gtest/gtest.h"

namespace pelton::network {
namespace {

// Keeps what it is to send. Threads: one. Owns: nothing.
class DeafWorker final : public Worker {
 public:
  const std::string& address() const override { return address_; }
  absl::Status AcceptFrom(const std::set<uint32_t>&) override { return absl::OkStatus(); }
  absl::Status StopListening() override { return absl::OkStatus(); }
  absl::Status Connect(int, const std::string&) override { return absl::OkStatus(); }
  bool IsConnected(int) const override { return true; }
  absl::StatusOr<bool> Send(int, const SendRequest& request) override {
    waiters_.push_back(request.waiter);
    return false;
  }
  absl::StatusOr<bool> Pull(const Payload&, void*, Waiter*) override { return false; }
  void Release(const Payload&) override {}
  bool Progress() override { return false; }
  bool Arm() override { return true; }
  int descriptor() const override { return -1; }
  bool Flush() override { return true; }
  void Close() override {}

  void Break(const absl::Status& why) {
    for (Waiter* const waiter : waiters_) waiter->OnDone(why);
    waiters_.clear();
  }

 private:
  const std::string address_;
  std::vector<Waiter*> waiters_;
};

Operation MessageOf(OperationKind kind, int32_t peer, float& value) {
  Operation operation;
  operation.kind = kind;
  operation.peer = peer;
  operation.count = 1;
  const Location location = Locate(&value, sizeof value);
  kind == OperationKind::kSend ? operation.set_source(location) : operation.set_target(location);
  return operation;
}

// The communicator would take the status for that of the connection to rank 2.
TEST(FailedTransferTest, IsNotTheFailureOfAReceiveFromAnotherRank) {
  const Group group = Group::World(WorldSize(3));
  const Members mine("token", CommunicatorId(1), group, Rank(0));
  const Members theirs("token", CommunicatorId(1), group, Rank(2));
  DeafWorker worker;
  PointToPoint messages(mine, worker);
  float out = 0, sent = 7, in = 0;
  Header header = theirs.MakeHeader(MessageType::kData, 0);
  header.operation = MessageOf(OperationKind::kSend, 0, sent);
  header.operation.sequence = 1;
  ASSERT_TRUE(messages.Arrive(header, {&sent, sizeof sent, /*is_rendezvous=*/false}));

  auto* const memory = reinterpret_cast<std::byte*>(&out);
  ASSERT_TRUE(messages.Start(MessageOf(OperationKind::kSend, 1, out), memory).ok());
  worker.Break(absl::UnavailableError("tcp: sending: Broken pipe"));
  ASSERT_FALSE(messages.failure().ok());
  const auto ticket =
      messages.Start(MessageOf(OperationKind::kRecv, 2, in), reinterpret_cast<std::byte*>(&in));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_TRUE(messages.Query(*ticket).done);
  EXPECT_EQ(messages.Query(*ticket).status, absl::OkStatus());
  EXPECT_EQ(in, 7);
}

}  // namespace
}  // namespace pelton::network
