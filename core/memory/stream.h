// The order in which work on one device runs.
#ifndef PELTON_CORE_MEMORY_STREAM_H_
#define PELTON_CORE_MEMORY_STREAM_H_

#include <compare>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace pelton {

enum class DeviceKind : uint8_t { kHost = 0, kCuda = 1 };
inline absl::string_view NameOf(DeviceKind kind) {
  return kind == DeviceKind::kHost ? "host" : "cuda";
}

// Where a tensor's memory lies: a kind of device and its number in this process.
struct Device {
  DeviceKind kind = DeviceKind::kHost;
  int32_t index = 0;

  friend auto operator<=>(const Device&, const Device&) = default;
};

// A queue of work on a device. On the host work is done when the call that did it returns, so the
// host's stream is empty; a GPU's stream wraps the one of its runtime. Threads: one at a time.
// Owns: what its subclass says.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual DeviceKind device() const = 0;
};

// Threads: any. Owns: nothing.
class HostStream final : public Stream {
 public:
  DeviceKind device() const override { return DeviceKind::kHost; }
};

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_STREAM_H_
