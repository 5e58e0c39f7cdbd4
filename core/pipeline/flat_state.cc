#include "core/pipeline/flat_state.h"

namespace pelton {

void FlatState::Add(StateBuffer buffer) {
  owned_.push_back(std::make_unique<std::byte[]>(buffer.count * SizeOf(buffer.dtype)));
  buffer.data = owned_.back().get();
  buffers_.push_back(buffer);
}

}  // namespace pelton
