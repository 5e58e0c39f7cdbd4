#include "backend/link/call_desk.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Numbers that the runtime draws under this prefix are never drawn again, not even for another
// trainer.
constexpr absl::string_view kOfTheRuntime = "pelton/";

std::string Prefixed(const std::string& prefix, const std::string& name) {
  const bool is_ours = absl::string_view(name).substr(0, kOfTheRuntime.size()) == kOfTheRuntime;
  return is_ours ? name : absl::StrCat(prefix, name);
}

// One call with all that it needs.
// Threads: one. Owns: nothing of what it names.
struct Desk {
  Backend& backend;
  TrainerSeat& seat;
  const TrainerSeat::Trainer& trainer;
  const std::string prefix;
  const absl::Time deadline;

  // By the names of the members, as comm/control/control.h says: no kind of question is named here.
  template <typename Request>
  void SetApart(Request& request) const {
    if constexpr (requires { request.keys; }) {
      for (std::string& key : request.keys) key = Prefixed(prefix, key);
    }
    if constexpr (requires { request.name; }) request.name = absl::StrCat(prefix, request.name);
  }

  absl::Status Ask(const proto::ControlQuestion& message, proto::ControlAnswer* reply) const {
    ASSIGN_OR_RETURN(ControlQuestion question, wire::FromProto(message));
    std::visit([this](auto& request) { SetApart(request); }, question);
    ASSIGN_OR_RETURN(ControlAnswer answer, backend.control().Ask(std::move(question), deadline));
    wire::ToProto(std::move(answer), reply);
    return absl::OkStatus();
  }

  absl::Status Run(const proto::LinkCall& call, proto::LinkReply* reply) const {
    switch (call.request_case()) {
      case proto::LinkCall::kQuestion:
        return Ask(call.question(), reply->mutable_answer());
      case proto::LinkCall::kReport:
        return seat.Report(
            trainer, wire::ErrorFromProto(call.report().code(), call.report().message()), deadline);
      default:
        return absl::InvalidArgumentError(
            "the trainer has made a call that this daemon does not know; start the trainer and the "
            "daemon from one installation");
    }
  }
};

}  // namespace

proto::LinkReply AnswerCall(Backend& backend, TrainerSeat& seat,
                            const TrainerSeat::Trainer& trainer, const proto::LinkCall& call) {
  const Desk desk{backend, seat, trainer, TrainerSeat::PrefixOf(trainer.epoch),
                  wire::DeadlineFromProto(Clock::Real().Now(), call.timeout_us())};
  proto::LinkReply reply;
  const absl::Status status = desk.Run(call, &reply);
  if (status.ok()) return reply;
  reply.Clear();
  reply.set_code(static_cast<int32_t>(status.code()));
  reply.set_message(absl::StrReplaceAll(status.message(), {{desk.prefix, ""}}));
  return reply;
}

}  // namespace pelton
