// Memory of a daemon in its trainer, which the trainer's forked children must leave alone.
#ifndef PELTON_BACKEND_LINK_PRIVATE_MAPPING_H_
#define PELTON_BACKEND_LINK_PRIVATE_MAPPING_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/mapping.h"
#include "core/base/private_in_children.h"

namespace pelton {

// A mapping that is private in children.
// Threads: any; the bytes are the users' to order. Owns: the mapping and the descriptor.
class PrivateMapping {
 public:
  // Maps the whole of `file`. Errors: those of shm::Mapping::Of.
  static absl::StatusOr<std::unique_ptr<PrivateMapping>> Of(Descriptor file) {
    absl::StatusOr<shm::Mapping::Pointer> mapping = shm::Mapping::Of(file.get());
    if (!mapping.ok()) return mapping.status();
    return std::unique_ptr<PrivateMapping>(
        new PrivateMapping(std::move(file), *std::move(mapping)));
  }

  std::byte* data() const { return mapping_->data(); }
  size_t size_bytes() const { return mapping_->size_bytes(); }

 private:
  PrivateMapping(Descriptor file, shm::Mapping::Pointer mapping)
      : file_(std::move(file)),
        mapping_(std::move(mapping)),
        in_children_(mapping_->data(), mapping_->size_bytes(), file_.get()) {}

  const Descriptor file_;
  const shm::Mapping::Pointer mapping_;
  const PrivateInChildren in_children_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_PRIVATE_MAPPING_H_
