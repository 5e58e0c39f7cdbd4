// A mean of float16 tensors over hosts of unequal size, by way of float32.
#ifndef PELTON_COMM_HIERARCHY_WIDE_MEAN_H_
#define PELTON_COMM_HIERARCHY_WIDE_MEAN_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "comm/hierarchy/layout.h"
#include "comm/hierarchy/wires.h"
#include "comm/transport/operation_check.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton::hierarchy {

// Hosts of one size pass on means, and the mean of those is the result. Hosts of unequal size pass
// on sums, and a host's sum of finite values may be more than float16 holds although the mean is
// not. So the tensor is widened to float32, which travels, and the result rounded once.
// Threads: those of the wires' Launch. Owns: the widened tensors; the wires outlive it.
class WideMean {
 public:
  explicit WideMean(Wires& wires) : wires_(wires) {}
  ~WideMean();
  WideMean(const WideMean&) = delete;
  WideMean& operator=(const WideMean&) = delete;

  // Whether `operation` needs it on these hosts: all ranks answer alike.
  static bool IsFor(const Operation& operation, const Layout& layout);

  // Begins for `operation` of `rank`. Errors: ResourceExhausted: no memory for float32.
  absl::Status Start(const Operation& operation, const OperationMemory& memory, Rank rank,
                     WorldSize world_size);
  bool is_active() const { return is_active_; }
  // Each does a bounded step; true once the whole is done. The result is there after Narrow.
  bool Widen();
  bool Narrow();
  // The same in float32.
  const Operation& operation() const { return operation_; }
  OperationMemory memory() const;

 private:
  Wires& wires_;
  std::unique_ptr<Region> region_;
  Operation operation_;
  OperationMemory narrow_;
  uint64_t source_count_ = 0;  // elements
  uint64_t target_count_ = 0;
  uint64_t target_begin_ = 0;  // in the region, elements
  uint64_t done_count_ = 0;
  bool is_active_ = false;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_WIDE_MEAN_H_
