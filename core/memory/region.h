// A region is a piece of memory with a number, so that an operation can name it without a pointer
// and other ranks of the host can map it.
#ifndef PELTON_CORE_MEMORY_REGION_H_
#define PELTON_CORE_MEMORY_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace pelton {

// The whole private address space of the process: an offset into it is a virtual address.
inline constexpr RegionId kPrivateRegion{0};

// A place in a region. Units: bytes.
struct Location {
  RegionId region = kPrivateRegion;
  uint64_t offset = 0;

  friend bool operator==(const Location&, const Location&) = default;
};

// Shared memory, unless adopted: a memfd, sealed against shrinking, pre-faulted, that peers map
// through its descriptor. It is nowhere in the file system, so nothing stays behind when the
// process dies. Threads: any; the bytes are the users' to order. Owns: the mapping and the
// descriptor, but adopted memory.
class Region {
 public:
  // Makes a region of `size_bytes` zeros, rounded up to whole pages, and enters it into the
  // process's table. Errors: InvalidArgument: size 0; ResourceExhausted: the kernel gives no
  // memory.
  static absl::StatusOr<std::unique_ptr<Region>> Create(size_t size_bytes, const std::string& name);
  // Enters a region of another process under a number of this one. Both see the same bytes, and
  // peers map it like any other. `descriptor` stays the caller's. Errors: InvalidArgument: it is no
  // memory that is sealed against shrinking, or has none; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<Region>> Open(int descriptor, const std::string& name);
  // Enters memory that somebody else owns, for instance a device's, into the process's table; it
  // outlives the region. Peers cannot map it: descriptor() is -1.
  static std::unique_ptr<Region> Adopt(void* data, size_t size_bytes, const std::string& name);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  RegionId id() const { return id_; }
  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  int descriptor() const { return descriptor_; }
  const std::string& name() const { return name_; }

 private:
  Region(std::byte* data, size_t size_bytes, int descriptor, std::string name);

  RegionId id_;
  std::byte* data_;
  size_t size_bytes_;
  int descriptor_;
  std::string name_;
};

// Where `size_bytes` at `data` lie: in a live region, or else in the private address space.
// Threads: any. Blocks: never (takes one short lock).
Location Locate(const void* data, size_t size_bytes);

// The address of `location` in this process. Errors: NotFound: no such live region; OutOfRange.
absl::StatusOr<std::byte*> Resolve(Location location, size_t size_bytes);

// A new descriptor of the region's memory, by which another process opens it; the caller closes it.
// Errors: NotFound: no such live region; FailedPrecondition: it cannot be mapped elsewhere;
// ResourceExhausted.
absl::StatusOr<int> DescriptorOf(RegionId region);

// Takes a region's memory back from peers that cannot be asked to leave it alone: addresses and
// bytes stay as they are, and what a peer writes through its mapping reaches this process no more,
// nor the other way round. So no operation may end well in which a peer wrote there: see
// IsUnshared. Of a region that was opened, its owner is such a peer. Threads: any; others may use
// the bytes meanwhile. Blocks: for as long as copying the region takes. Errors: NotFound: no such
// live region; ResourceExhausted: the kernel refuses, and the region is as it was.
absl::Status Unshare(RegionId region);

// Whether that has begun. A peer's write that was in vain happened after this had become true, so
// ask once the peer says that it is through. Blocks: never.
bool IsUnshared(RegionId region);

namespace internal {
// For tests: where the numbers of later regions begin.
void SetNextRegionId(RegionId id);
}  // namespace internal

}  // namespace pelton

#endif  // PELTON_CORE_MEMORY_REGION_H_
