// What stands before everything that a TCP connection carries, either way.
#ifndef PELTON_COMM_TRANSPORT_TCP_FRAME_H_
#define PELTON_COMM_TRANSPORT_TCP_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace pelton::tcp {

// The numbers are part of the wire format: append only.
enum class FrameType : uint32_t {
  kMessage = 1,    // a Header follows, then `size_bytes` of payload
  kOffer = 2,      // a Header follows; `size_bytes` wait at the sender under `id`
  kFetch = 3,      // asks for what was offered under `id`
  kDecline = 4,    // nobody wants what was offered under `id`, or the rest of it
  kBody = 5,       // the next `size_bytes` of what was offered under `id` follow
  kGreeting = 6,   // a Header follows, which proves whose end this is; the first frame of each end
  kWithdrawn = 7,  // nothing more of what was offered under `id` will come
  kGone = 8,       // the sender has no worker behind `port`, to which something has come
};

struct Frame {
  FrameType type = FrameType::kMessage;
  uint32_t port = 0;  // of the receiver's worker, for a message and an offer; see kGone
  uint64_t id = 0;    // of the offer, by its sender
  uint64_t size_bytes = 0;
};
static_assert(sizeof(Frame) == 24, "part of the wire format");
static_assert(std::is_trivially_copyable_v<Frame>);

// A message that is not offered; more is no rank's.
inline constexpr size_t kMaxMessageBytes = 8192;

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_FRAME_H_
