// The interface of a profiler that is shown ranges of time as they begin and end.
#ifndef PELTON_CORE_TRACE_RANGE_VIEWER_H_
#define PELTON_CORE_TRACE_RANGE_VIEWER_H_

#include <string>

#include "absl/functional/any_invocable.h"

namespace pelton {

// Looks at a model's rounds while it follows the thread that begins them.
// Threads: any. Owns: what its subclass says.
class RangeViewer {
 public:
  virtual ~RangeViewer() = default;
  // Looks if anybody is shown what the calling thread does; Leave looks no longer. Units: some
  // nanoseconds where nobody is.
  virtual void Follow() = 0;
  virtual void Leave() = 0;
  // Whether anybody looks: asked before a name is made, so that nobody pays for one in vain.
  virtual bool is_looking() const = 0;
  // Begins a range. The answer ends it, on any thread; null: nobody looks any more. Blocks: never.
  virtual absl::AnyInvocable<void()> Begin(std::string name) = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_TRACE_RANGE_VIEWER_H_
