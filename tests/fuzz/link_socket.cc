// The packets between a trainer and its daemon, and the messages that they make up.
#include "backend/link/link_socket.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/packets.h"

namespace pelton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  LinkSocket socket(fuzz::SocketWith(fuzz::Input(data, size)));
  size_t payload_bytes = 0;
  while (true) {
    const absl::StatusOr<LinkSocket::Message> message = socket.Receive(absl::InfinitePast());
    // The other end is closed, so that there is nothing to wait for.
    PELTON_CHECK(!absl::IsDeadlineExceeded(message.status()));
    if (!message.ok()) return 0;
    PELTON_CHECK(message->descriptors.size() <= LinkSocket::kMaxDescriptors);
    payload_bytes += message->payload.size();
    PELTON_CHECK(payload_bytes <= size);
  }
}

}  // namespace pelton
