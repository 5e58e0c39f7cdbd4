// A socket on which the bytes of a fuzz target's input have arrived.
#ifndef PELTON_TESTS_FUZZ_PACKETS_H_
#define PELTON_TESTS_FUZZ_PACKETS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "comm/transport/descriptor.h"
#include "tests/fuzz/input.h"

namespace pelton::fuzz {

// One end of a pair whose other end is closed. On it lie packets, each with the descriptors whose
// number is in the input's next byte, modulo 8, and the chunk behind that.
Descriptor SocketWith(Input input);
// The input for one packet.
std::string Packet(uint8_t descriptors, absl::string_view bytes);

}  // namespace pelton::fuzz

#endif  // PELTON_TESTS_FUZZ_PACKETS_H_
