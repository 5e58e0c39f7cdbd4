// The messages between the ranks of one host.
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/transport/shm/socket.h"
#include "core/base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/packets.h"

namespace pelton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Descriptor socket = fuzz::SocketWith(fuzz::Input(data, size));
  while (true) {
    const absl::StatusOr<shm::Message> message = shm::Receive(socket.get(), absl::InfinitePast());
    PELTON_CHECK(!absl::IsDeadlineExceeded(message.status()));
    // A message that is malformed ends the connection.
    if (!message.ok()) return 0;
    PELTON_CHECK(message->frame.magic == shm::Frame::kMagic);
    PELTON_CHECK(message->payload.size() <= size);
  }
}

}  // namespace pelton
