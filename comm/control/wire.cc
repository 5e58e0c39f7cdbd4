#include "comm/control/wire.h"

#include <algorithm>

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

}  // namespace

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

// The enumerators of KeyValueRequest::Kind have the numbers of the wire.
KeyValueRequest FromProto(const proto::KeyValueRequest& message) {
  return {.kind = static_cast<KeyValueRequest::Kind>(message.kind()),
          .keys = {message.keys().begin(), message.keys().end()},
          .value = message.value(),
          .expected = message.expected(),
          .delta = message.delta()};
}

void ToProto(const KeyValueRequest& request, proto::KeyValueRequest* message) {
  message->set_kind(static_cast<proto::KeyValueRequest::Kind>(request.kind));
  for (const std::string& key : request.keys) message->add_keys(key);
  message->set_value(request.value);
  message->set_expected(request.expected);
  message->set_delta(request.delta);
}

AllGatherRequest FromProto(const proto::AllGatherRequest& message) {
  AllGatherRequest request{message.name(), message.value()};
  for (const int32_t member : message.members()) request.members.emplace_back(member);
  return request;
}

void ToProto(const AllGatherRequest& request, proto::AllGatherRequest* message) {
  message->set_name(request.name);
  message->set_value(request.value);
  for (const Rank member : request.members) message->add_members(member.value());
}

// The enumerators of PeerPolicy have the numbers of the wire; others stay what they are, and are
// refused.
SelectPeersRequest FromProto(const proto::SelectPeersRequest& message) {
  SelectPeersRequest request;
  for (const int32_t member : message.members()) request.members.emplace_back(member);
  request.policy = static_cast<PeerPolicy>(message.policy() & 0xFF);
  request.step = message.step();
  return request;
}

void ToProto(const SelectPeersRequest& request, proto::SelectPeersRequest* message) {
  for (const Rank member : request.members) message->add_members(member.value());
  message->set_policy(static_cast<proto::SelectPeersRequest::Policy>(request.policy));
  message->set_step(request.step);
}

FindPeerRequest FromProto(const proto::FindPeerRequest& message) {
  FindPeerRequest request;
  request.group = CommunicatorId(message.group());
  for (const int32_t member : message.members()) request.members.emplace_back(member);
  request.round = message.round();
  return request;
}

void ToProto(const FindPeerRequest& request, proto::FindPeerRequest* message) {
  message->set_group(request.group.value());
  for (const Rank member : request.members) message->add_members(member.value());
  message->set_round(request.round);
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
