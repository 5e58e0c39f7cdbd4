#include "comm/control/wire.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace pelton::wire {
namespace {

constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

HostIdentity FromProto(const proto::HostIdentity& message) {
  return {message.boot_id(), message.network_namespace(), message.pid()};
}

void ToProto(const HostIdentity& host, proto::HostIdentity* message) {
  message->set_boot_id(host.boot_id);
  message->set_network_namespace(host.network_namespace);
  message->set_pid(host.pid);
}

// What is unknown ends the rank's waits: it cannot do what it was ordered to.
Order::Kind KindOf(proto::Order::Kind kind) {
  switch (kind) {
    case proto::Order::PEER_LEFT:
      return Order::Kind::kPeerLeft;
    case proto::Order::PEER_ABSENT:
      return Order::Kind::kPeerAbsent;
    case proto::Order::PEER_BACK:
      return Order::Kind::kPeerBack;
    default:
      return Order::Kind::kAbort;
  }
}

proto::Order::Kind KindOf(Order::Kind kind) {
  switch (kind) {
    case Order::Kind::kPeerLeft:
      return proto::Order::PEER_LEFT;
    case Order::Kind::kPeerAbsent:
      return proto::Order::PEER_ABSENT;
    case Order::Kind::kPeerBack:
      return proto::Order::PEER_BACK;
    default:
      return proto::Order::ABORT;
  }
}

template <typename Message>
std::vector<Rank> MembersOf(const Message& message) {
  return std::vector<Rank>(message.members().begin(), message.members().end());
}

template <typename Message>
void AddMembers(const std::vector<Rank>& members, Message* message) {
  for (const Rank member : members) message->add_members(member.value());
}

// The enumerators of KeyValueRequest::Kind have the numbers of the wire.
KeyValueRequest FromProto(const proto::KeyValueRequest& message) {
  return {.kind = static_cast<KeyValueRequest::Kind>(message.kind()),
          .keys = {message.keys().begin(), message.keys().end()},
          .value = message.value(),
          .expected = message.expected(),
          .delta = message.delta()};
}

void Write(KeyValueRequest& request, proto::ControlQuestion* question) {
  proto::KeyValueRequest* const message = question->mutable_key_value();
  message->set_kind(static_cast<proto::KeyValueRequest::Kind>(request.kind));
  for (std::string& key : request.keys) message->add_keys(std::move(key));
  message->set_value(std::move(request.value));
  message->set_expected(std::move(request.expected));
  message->set_delta(request.delta);
}

void Write(KeyValueResult& result, proto::ControlAnswer* answer) {
  answer->mutable_key_value()->set_value(std::move(result.value));
  answer->mutable_key_value()->set_number(result.number);
}

AllGatherRequest FromProto(const proto::AllGatherRequest& message) {
  return {message.name(), message.value(), MembersOf(message)};
}

void Write(AllGatherRequest& request, proto::ControlQuestion* question) {
  proto::AllGatherRequest* const message = question->mutable_all_gather();
  message->set_name(std::move(request.name));
  message->set_value(std::move(request.value));
  AddMembers(request.members, message);
}

void Write(const AllGatherResult& result, proto::ControlAnswer* answer) {
  proto::AllGatherResponse* const message = answer->mutable_all_gather();
  for (const std::string& value : *result.values) message->add_values(value);
}

// The enumerators of PeerPolicy have the numbers of the wire; others stay what they are, and are
// refused.
SelectPeersRequest FromProto(const proto::SelectPeersRequest& message) {
  return {CommunicatorId(message.group()), MembersOf(message),
          static_cast<PeerPolicy>(message.policy() & 0xFF), message.step()};
}

void Write(const SelectPeersRequest& request, proto::ControlQuestion* question) {
  proto::SelectPeersRequest* const message = question->mutable_select_peers();
  message->set_group(request.group.value());
  AddMembers(request.members, message);
  message->set_policy(static_cast<proto::SelectPeersRequest::Policy>(request.policy));
  message->set_step(request.step);
}

void Write(const Matching& matching, proto::ControlAnswer* answer) {
  answer->mutable_select_peers()->mutable_peers()->Assign(matching.begin(), matching.end());
}

FindPeerRequest FromProto(const proto::FindPeerRequest& message) {
  return {CommunicatorId(message.group()), MembersOf(message), message.round()};
}

void Write(const FindPeerRequest& request, proto::ControlQuestion* question) {
  proto::FindPeerRequest* const message = question->mutable_find_peer();
  message->set_group(request.group.value());
  AddMembers(request.members, message);
  message->set_round(request.round);
}

void Write(const PeerMatch& match, proto::ControlAnswer* answer) {
  answer->mutable_find_peer()->set_peer(match.peer.value());
  answer->mutable_find_peer()->set_match(match.number);
}

}  // namespace

int SilenceToGrpc(absl::Duration silence) {
  constexpr int64_t kForEver = std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(silence), 1, kForEver));
}

absl::Status ValidateToken(absl::string_view token) {
  constexpr size_t kLeastBytes = 16;
  constexpr size_t kMostBytes = 1024;
  if (token.size() < kLeastBytes || token.size() > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token: has ", token.size(), " bytes, must have ", kLeastBytes, " to ", kMostBytes));
  }
  if (!std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError("token: must be visible ASCII characters only");
  }
  return absl::OkStatus();
}

bool SameToken(absl::string_view expected, absl::string_view given) {
  unsigned difference = expected.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < expected.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(expected[i] ^ other);
  }
  return difference == 0;
}

JoinRequest FromProto(const proto::JoinRequest& message) {
  return {message.job(), Rank(message.rank()), WorldSize(message.world_size()),
          message.protocol_version(), FromProto(message.host())};
}

void ToProto(const JoinRequest& request, proto::JoinRequest* message) {
  message->set_job(request.job);
  message->set_rank(request.rank.value());
  message->set_world_size(request.world_size.value());
  message->set_protocol_version(request.protocol_version);
  ToProto(request.host, message->mutable_host());
}

Caller FromProto(const proto::Caller& message) {
  return {message.job(), Rank(message.rank()), Generation(message.generation())};
}

void ToProto(const Caller& caller, proto::Caller* message) {
  message->set_job(caller.job);
  message->set_rank(caller.rank.value());
  message->set_generation(caller.generation.value());
}

absl::StatusOr<ControlQuestion> FromProto(const proto::ControlQuestion& message) {
  switch (message.kind_case()) {
    case proto::ControlQuestion::kKeyValue:
      return FromProto(message.key_value());
    case proto::ControlQuestion::kAllGather:
      return FromProto(message.all_gather());
    case proto::ControlQuestion::kSelectPeers:
      return FromProto(message.select_peers());
    case proto::ControlQuestion::kFindPeer:
      return FromProto(message.find_peer());
    default:
      return absl::InvalidArgumentError("question: is of no kind that is known here");
  }
}

absl::StatusOr<ControlAnswer> FromProto(proto::ControlAnswer message) {
  switch (message.kind_case()) {
    case proto::ControlAnswer::kKeyValue:
      return KeyValueResult{std::move(*message.mutable_key_value()->mutable_value()),
                            message.key_value().number()};
    case proto::ControlAnswer::kAllGather: {
      auto& values = *message.mutable_all_gather()->mutable_values();
      return AllGatherResult{std::make_shared<std::vector<std::string>>(
          std::make_move_iterator(values.begin()), std::make_move_iterator(values.end()))};
    }
    case proto::ControlAnswer::kSelectPeers:
      return Matching(message.select_peers().peers().begin(), message.select_peers().peers().end());
    case proto::ControlAnswer::kFindPeer:
      return PeerMatch{Rank(message.find_peer().peer()), message.find_peer().match()};
    default:
      return absl::InternalError("the coordinator's answer is of no kind that is known here");
  }
}

void ToProto(ControlQuestion question, proto::ControlQuestion* message) {
  std::visit([&](auto& kind) { Write(kind, message); }, question);
}

void ToProto(ControlAnswer answer, proto::ControlAnswer* message) {
  std::visit([&](auto& kind) { Write(kind, message); }, answer);
}

Membership FromProto(const proto::JoinResponse& message) {
  Membership membership{Generation(message.generation()), {}};
  membership.members.reserve(message.members_size());
  for (const proto::Member& member : message.members()) {
    membership.members.push_back({Rank(member.rank()), FromProto(member.host())});
  }
  return membership;
}

void ToProto(const Membership& membership, proto::JoinResponse* message) {
  message->set_generation(membership.generation.value());
  message->mutable_members()->Reserve(static_cast<int>(membership.members.size()));
  for (const Member& member : membership.members) {
    proto::Member* const added = message->add_members();
    added->set_rank(member.rank.value());
    ToProto(member.host, added->mutable_host());
  }
}

Order FromProto(const proto::Order& message) {
  return {KindOf(message.kind()), Rank(message.culprit()),
          ErrorFromProto(message.code(), message.message())};
}

void ToProto(const Order& order, Generation generation, proto::Order* message) {
  message->set_generation(generation.value());
  message->set_kind(KindOf(order.kind));
  message->set_culprit(order.culprit.value_or(Rank(-1)).value());
  message->set_code(static_cast<int>(order.reason.code()));
  message->set_message(std::string(order.reason.message()));
}

absl::Status ErrorFromProto(int32_t code, absl::string_view message) {
  const bool error = code > 0 && code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return {error ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, message};
}

absl::Time DeadlineFromProto(absl::Time now, int64_t timeout_us) {
  const absl::Duration timeout = absl::Microseconds(timeout_us);
  return now + std::clamp(timeout, absl::ZeroDuration(), kLongestTimeout);
}

int64_t TimeoutToProto(absl::Time now, absl::Time deadline) {
  return absl::ToInt64Microseconds(std::min(deadline - now, kLongestTimeout));
}

}  // namespace pelton::wire
