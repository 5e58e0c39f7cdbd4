// What ranks of different hosts say to each other about a window.
#ifndef PELTON_COMM_WINDOW_LINK_MESSAGE_H_
#define PELTON_COMM_WINDOW_LINK_MESSAGE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pelton {

// Tags of the messages; the communicator of a link has no other users.
inline constexpr int32_t kLinkMessageTag = 0;
inline constexpr int32_t kLinkRequestValueTag = 1;  // what a put or an accumulate brings
inline constexpr int32_t kLinkReplyValueTag = 2;    // what a get is given

// kLeave is the last request of an end, and has no reply: not every transport tells that the other
// rank has closed its communicator.
enum class LinkCall : uint8_t { kPut, kAccumulate, kGet, kLock, kTryLock, kUnlock, kLeave };

// The value of a put or an accumulate follows under a tag of its own, in the order of the requests.
// It travels as bytes. Threads: a value. Owns: nothing.
struct LinkRequest {
  uint64_t number = 0;  // of the asking end's requests, from 1
  uint64_t window = 0;
  uint64_t value_bytes = 0;  // of the value, whichever way it goes
  double weight = 1;         // by which the receiver multiplies
  double p = 0;
  int64_t wait_ns = 0;  // of a lock: how long it may take
  LinkCall call = LinkCall::kPut;
  uint8_t has_p = 0;

  bool brings_value() const { return call == LinkCall::kPut || call == LinkCall::kAccumulate; }
};

// The value of a get follows under a tag of its own, in the order of the replies, unless the reply
// is an error. It travels as bytes. Threads: a value. Owns: nothing.
struct LinkReply {
  uint64_t number = 0;  // of the request
  int32_t code = 0;
  uint8_t is_granted = 0;  // of a kTryLock
  char text[243] = {};

  static LinkReply To(uint64_t number, const absl::Status& status) {
    LinkReply reply;
    reply.number = number;
    reply.code = static_cast<int32_t>(status.code());
    const absl::string_view text = status.message().substr(0, sizeof reply.text - 1);
    std::copy(text.begin(), text.end(), reply.text);
    return reply;
  }
  absl::Status ToStatus() const {
    if (code == 0) return absl::OkStatus();
    return absl::Status(static_cast<absl::StatusCode>(code),
                        absl::string_view(text, strnlen(text, sizeof text)));
  }
};

// All that is announced goes under one tag, because a communicator may be asked for one at a time.
// It travels as bytes. Threads: a value. Owns: nothing.
struct LinkMessage {
  uint64_t is_reply = 0;
  LinkRequest request;
  LinkReply reply;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_LINK_MESSAGE_H_
