// The state that most stages keep: arrays beside a bucket's flat part.
#ifndef PELTON_CORE_PIPELINE_FLAT_STATE_H_
#define PELTON_CORE_PIPELINE_FLAT_STATE_H_

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/memory/dtype.h"
#include "core/pipeline/stage.h"

namespace pelton {

// Threads: as StageState. Owns: the arrays.
class FlatState final : public StageState {
 public:
  FlatState() = default;
  // Arrays of `dtype` beside the whole flat part of `layout`, filled with zeros. The names outlive
  // the state: literals.
  FlatState(const BucketLayout& layout, DType dtype, std::initializer_list<absl::string_view> names,
            StateScope scope = StateScope::kOwn) {
    for (absl::string_view name : names) {
      Add({.name = name, .dtype = dtype, .scope = scope, .count = layout.flat_count});
    }
  }

  // Adds zeros, as `buffer` describes them but for its data.
  void Add(StateBuffer buffer);

  absl::Span<const StateBuffer> buffers() const override { return buffers_; }
  // The elements of the array added as number `index`.
  std::byte* data(size_t index) const { return buffers_[index].data; }

 private:
  std::vector<StateBuffer> buffers_;
  std::vector<std::unique_ptr<std::byte[]>> owned_;
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_FLAT_STATE_H_
