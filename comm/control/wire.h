// Between the messages of proto/control.proto and the types of this folder.
#ifndef PELTON_COMM_CONTROL_WIRE_H_
#define PELTON_COMM_CONTROL_WIRE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_messages.h"
#include "proto/control.pb.h"

namespace pelton::wire {

inline constexpr char kTokenKey[] = "pelton-token";
// Trailing metadata of an error that the coordinator itself gave, not gRPC on the way.
inline constexpr char kOriginKey[] = "pelton-origin";
inline constexpr char kOriginCoordinator[] = "coordinator";
// Of requests: the largest value with its key and framing. gRPC refuses more before it is read.
inline constexpr int kMaxRequestBytes = (16 << 20) + (128 << 10);
// Of replies: the membership of the largest world.
inline constexpr int kMaxReplyBytes = 64 << 20;

// For how long gRPC is to bear silence. Units: milliseconds, at least 1; the most that an int holds
// is for ever.
int SilenceToGrpc(absl::Duration silence);

// Fits a metadata value. Errors: InvalidArgument: too short, too long, or other than visible ASCII;
// the token itself is never quoted.
absl::Status ValidateToken(absl::string_view token);
// Takes the same time wherever the two differ.
bool SameToken(absl::string_view expected, absl::string_view given);

JoinRequest FromProto(const proto::JoinRequest& message);
Caller FromProto(const proto::Caller& message);
// Errors: InvalidArgument, Internal for an answer: it is of no kind that is known here.
absl::StatusOr<ControlQuestion> FromProto(const proto::ControlQuestion& message);
absl::StatusOr<ControlAnswer> FromProto(proto::ControlAnswer message);
Membership FromProto(const proto::JoinResponse& message);
Order FromProto(const proto::Order& message);

void ToProto(const JoinRequest& request, proto::JoinRequest* message);
void ToProto(const Caller& caller, proto::Caller* message);
void ToProto(ControlQuestion question, proto::ControlQuestion* message);
void ToProto(ControlAnswer answer, proto::ControlAnswer* message);
void ToProto(const Membership& membership, proto::JoinResponse* message);
void ToProto(const Order& order, Generation generation, proto::Order* message);

// A code that is no error's becomes kUnknown.
absl::Status ErrorFromProto(int32_t code, absl::string_view message);

// The deadline of a request that arrived at `now`; one in the past is due at once.
absl::Time DeadlineFromProto(absl::Time now, int64_t timeout_us);
int64_t TimeoutToProto(absl::Time now, absl::Time deadline);

}  // namespace pelton::wire

#endif  // PELTON_COMM_CONTROL_WIRE_H_
