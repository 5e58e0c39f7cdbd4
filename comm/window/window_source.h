// Where the stages of a pipeline get their windows from.
#ifndef PELTON_COMM_WINDOW_WINDOW_SOURCE_H_
#define PELTON_COMM_WINDOW_WINDOW_SOURCE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/window/window.h"
#include "core/base/moving_deadline.h"

namespace pelton {

// Makes windows among the ranks of one group, which are numbered by their places in it.
// Threads: one at a time. Owns: what its subclass says.
class WindowSource {
 public:
  virtual ~WindowSource() = default;

  // Collective over the group, with the same names in the same order on all its ranks. The window
  // must end before its source. Its tensor is `window.options().tensor` from then on, which is
  // other memory than what was given where other ranks may not read that. Blocks: until all have
  // called, or the source's timeout. Errors: those of CreateWindow (create_window.h).
  virtual absl::StatusOr<std::unique_ptr<Window>> Make(WindowOptions options) = 0;
  // That of a call which begins now, for WindowAccess.
  virtual MovingDeadline deadline() const = 0;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_WINDOW_SOURCE_H_
