// What ranks ask of the coordinator, and what trainers ask of it through their daemons, up to the
// state that it changes; and what it answers.
#include <utility>

#include "absl/status/statusor.h"
#include "comm/control/coordinator_state.h"
#include "comm/control/wire.h"
#include "core/base/check.h"
#include "proto/control.pb.h"
#include "proto/link.pb.h"
#include "tests/fuzz/input.h"

namespace pelton {
namespace {

template <typename Message>
Message Parsed(absl::string_view bytes) {
  Message message;
  (void)message.ParsePartialFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return message;
}

// Feeds a coordinator of which ranks 0 and 1 of job "job" are members.
// Threads: one. Owns: the coordinator.
class World {
 public:
  World() {
    for (const int rank : {0, 1}) {
      JoinRequest request;
      request.job = "job";
      request.rank = Rank(rank);
      request.world_size = WorldSize(2);
      state_.Join(NextCall(absl::Seconds(1)), std::move(request), &outbox_);
    }
    for (const int rank : {0, 1}) {
      PELTON_CHECK_OK(state_.OpenStream({"job", Rank(rank), Generation(1)}, now_, &outbox_));
    }
  }

  // Every call has had its one answer (ONCE-1).
  ~World() {
    state_.Tick(now_ + absl::Hours(24 * 366), &outbox_);
    PELTON_CHECK(outbox_.replies.size() == calls_);
    for (const Reply& reply : outbox_.replies) PELTON_CHECK(reply.call <= calls_);
  }

  void Feed(uint8_t kind, absl::string_view bytes) {
    switch (kind % 6) {
      case 0:
        return Join(Parsed<proto::JoinRequest>(bytes));
      case 1:
        return Ask(Parsed<proto::AskRequest>(bytes));
      case 2:
        return Beat(Parsed<proto::HeartbeatRequest>(bytes));
      case 3:
        return Report(Parsed<proto::ReportRequest>(bytes));
      case 4:
        (void)state_.Leave(wire::FromProto(Parsed<proto::LeaveRequest>(bytes).caller()), &outbox_);
        return;
      default:
        return Call(Parsed<proto::LinkCall>(bytes));
    }
  }

 private:
  pelton::Call NextCall(absl::Duration timeout) { return {++calls_, now_, now_ + timeout}; }
  pelton::Call NextCall(int64_t timeout_us) {
    return NextCall(wire::DeadlineFromProto(now_, timeout_us) - now_);
  }

  void Join(const proto::JoinRequest& message) {
    state_.Join(NextCall(message.timeout_us()), wire::FromProto(message), &outbox_);
  }
  void Ask(const proto::AskRequest& message) {
    absl::StatusOr<ControlQuestion> question = wire::FromProto(message.question());
    if (!question.ok()) return;
    state_.Ask(NextCall(message.timeout_us()), wire::FromProto(message.caller()),
               *std::move(question), &outbox_);
  }
  void Report(const proto::ReportRequest& message) {
    (void)state_.Report(wire::FromProto(message.caller()),
                        wire::ErrorFromProto(message.code(), message.message()), &outbox_);
  }
  void Beat(const proto::HeartbeatRequest& message) {
    now_ += absl::Milliseconds(100);
    (void)state_.Heartbeat(wire::FromProto(message.caller()),
                           {Round(message.round()), absl::Microseconds(message.round_trip_us())},
                           now_);
    state_.Tick(now_, &outbox_);
  }
  // A daemon's calls are those of its rank, whoever the message says that it is.
  void Call(proto::LinkCall message) {
    proto::Caller caller;
    caller.set_job("job");
    caller.set_generation(1);
    if (message.has_question()) {
      proto::AskRequest request;
      *request.mutable_caller() = caller;
      *request.mutable_question() = std::move(*message.mutable_question());
      Ask(request);
    }
    if (message.has_report()) {
      *message.mutable_report()->mutable_caller() = caller;
      Report(message.report());
    }
  }

  CoordinatorState state_{absl::Seconds(10)};
  Outbox outbox_;
  uint64_t calls_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  World world;
  for (fuzz::Input input(data, size); !input.empty();) {
    const uint8_t kind = input.TakeByte();
    const absl::string_view bytes = input.TakeChunk();
    world.Feed(kind, bytes);
    // The same bytes as a rank would take them for an answer.
    (void)wire::FromProto(Parsed<proto::JoinResponse>(bytes));
    (void)wire::FromProto(Parsed<proto::ControlAnswer>(bytes));
    const Order order = wire::FromProto(Parsed<proto::Order>(bytes));
    PELTON_CHECK(!order.reason.ok());
  }
  return 0;
}

}  // namespace pelton
