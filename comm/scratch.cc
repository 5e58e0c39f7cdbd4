#include "comm/scratch.h"

#include <utility>

#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Scratch>> Scratch::Create(Communicator& communicator,
                                                         const std::string& name,
                                                         uint64_t size_bytes) {
  ASSIGN_OR_RETURN(std::unique_ptr<Region> region, Region::Create(size_bytes, name));
  RETURN_IF_ERROR(communicator.Register(*region));
  return std::unique_ptr<Scratch>(new Scratch(communicator, std::move(region)));
}

Scratch::Scratch(Communicator& communicator, std::unique_ptr<Region> region)
    : communicator_(communicator), region_(std::move(region)) {}

Scratch::~Scratch() { communicator_.Deregister(region_->id()); }

std::byte* Scratch::data() const { return region_->data(); }

Location Scratch::At(uint64_t offset_bytes) const { return {region_->id(), offset_bytes}; }

}  // namespace pelton
