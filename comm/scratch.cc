#include "comm/scratch.h"

#include <utility>

#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Scratch>> Scratch::Create(Communicator& communicator,
                                                         const std::string& name,
                                                         uint64_t size_bytes, DeviceQueue* device) {
  std::unique_ptr<Region> region;
  if (device == nullptr) {
    ASSIGN_OR_RETURN(region, Region::Create(size_bytes, name));
  } else {
    ASSIGN_OR_RETURN(std::byte* const memory, device->Allocate(size_bytes));
    region = Region::Adopt(memory, size_bytes, name);
  }
  const Region& registered = *region;
  std::unique_ptr<Scratch> scratch(new Scratch(communicator, std::move(region), device));
  RETURN_IF_ERROR(communicator.Register(registered));
  return scratch;
}

Scratch::Scratch(Communicator& communicator, std::unique_ptr<Region> region, DeviceQueue* device)
    : communicator_(communicator), region_(std::move(region)), device_(device) {}

Scratch::~Scratch() {
  communicator_.Deregister(region_->id());
  std::byte* const memory = data();
  region_.reset();
  if (device_ != nullptr) device_->Release(memory);
}

std::byte* Scratch::data() const { return region_->data(); }

Location Scratch::At(uint64_t offset_bytes) const { return {region_->id(), offset_bytes}; }

}  // namespace pelton
