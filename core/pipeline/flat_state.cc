#include "core/pipeline/flat_state.h"

namespace pelton {

void FlatState::Add(absl::string_view name, DType dtype, uint64_t begin_count, uint64_t count) {
  owned_.push_back(std::make_unique<std::byte[]>(count * SizeOf(dtype)));
  buffers_.push_back({.name = name,
                      .dtype = dtype,
                      .begin_count = begin_count,
                      .count = count,
                      .data = owned_.back().get()});
}

}  // namespace pelton
