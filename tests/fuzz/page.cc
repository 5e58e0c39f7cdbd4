// The page that a trainer and its daemon share: what the other side has left there may be anything.
#include "backend/link/page.h"

#include <algorithm>
#include <cstring>

#include "absl/status/statusor.h"
#include "core/base/check.h"
#include "tests/fuzz/input.h"

namespace pelton {
namespace {

constexpr size_t kSlots = 3;
constexpr size_t kMostBytes = 1 << 16;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > kMostBytes) return 0;
  const absl::StatusOr<Descriptor> memory = shm::NewSharedMemory(size, "pelton-page");
  PELTON_CHECK_OK(memory.status());
  PELTON_CHECK(pwrite(memory->get(), data, size, 0) == static_cast<ssize_t>(size));
  const absl::StatusOr<LinkPage> page = LinkPage::Map(memory->get(), kSlots);
  if (!page.ok()) return 0;
  const absl::Status left = page->outcome();
  PELTON_CHECK(left.message().size() <= PageOutcome::kTextBytes + 64);
  page->SetOutcome(left);
  PELTON_CHECK(page->outcome().code() == left.code());
  // The last words lie in the mapping.
  page->bucket(BucketId(kSlots - 1)).done_ns.store(1);
  page->slot(SlotId(kSlots - 1)).mark.store(2);
  return 0;
}

}  // namespace pelton
