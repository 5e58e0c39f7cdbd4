#include "backend/link/call_desk.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Numbers that the runtime draws there are never drawn again, whoever asks.
constexpr absl::string_view kOfTheRuntime = "pelton/";
// A step counts anew with each set of trainers, but not at the coordinator.
constexpr int kStepBits = 40;

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

  absl::Status Answer(const proto::KeyValueRequest& message, proto::KeyValueResponse* reply) const {
    KeyValueRequest request = wire::FromProto(message);
    for (std::string& key : request.keys) key = Prefixed(prefix, key);
    ASSIGN_OR_RETURN(KeyValueResult result, backend.control().KeyValue(request, deadline));
    reply->set_value(std::move(result.value));
    reply->set_number(result.number);
    return absl::OkStatus();
  }

  absl::Status Answer(const proto::AllGatherRequest& message,
                      proto::AllGatherResponse* reply) const {
    AllGatherRequest request = wire::FromProto(message);
    request.name = absl::StrCat(prefix, request.name);
    ASSIGN_OR_RETURN(std::vector<std::string> values,
                     backend.control().AllGatherAmong(request, deadline));
    for (std::string& value : values) reply->add_values(std::move(value));
    return absl::OkStatus();
  }

  absl::Status Answer(const proto::SelectPeersRequest& message,
                      proto::SelectPeersResponse* reply) const {
    SelectPeersRequest request = wire::FromProto(message);
    request.step += (trainer.epoch - 1) << kStepBits;
    ASSIGN_OR_RETURN(const Matching matching, backend.control().SelectPeers(request, deadline));
    for (const int32_t peer : matching) reply->add_peers(peer);
    return absl::OkStatus();
  }

  absl::Status Answer(const proto::FindPeerRequest& message, proto::FindPeerResponse* reply) const {
    ASSIGN_OR_RETURN(const PeerMatch match,
                     backend.control().FindPeer(wire::FromProto(message), deadline));
    reply->set_peer(match.peer.value());
    reply->set_match(match.number);
    return absl::OkStatus();
  }

  absl::Status Run(const proto::LinkCall& call, proto::LinkReply* reply) const {
    switch (call.request_case()) {
      case proto::LinkCall::kKeyValue:
        return Answer(call.key_value(), reply->mutable_key_value());
      case proto::LinkCall::kAllGather:
        return Answer(call.all_gather(), reply->mutable_all_gather());
      case proto::LinkCall::kSelectPeers:
        return Answer(call.select_peers(), reply->mutable_select_peers());
      case proto::LinkCall::kFindPeer:
        return Answer(call.find_peer(), reply->mutable_find_peer());
      case proto::LinkCall::kReport:
        return seat.Report(trainer, Rank(call.report().culprit()),
                           wire::ErrorFromProto(call.report().code(), call.report().message()),
                           deadline);
      default:
        return absl::InvalidArgumentError("a call without a request that this daemon knows");
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
