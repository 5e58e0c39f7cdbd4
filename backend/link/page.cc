#include "backend/link/page.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton {
namespace {

static_assert(sizeof(PageBucket) == 64);
static_assert(sizeof(PageSlot) == 32);
static_assert(sizeof(PageHeader) % 64 == 0);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

constexpr int32_t kLastCode = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);

size_t SizeOfPage(size_t slot_count) {
  return sizeof(PageHeader) + slot_count * (sizeof(PageBucket) + sizeof(PageSlot));
}

}  // namespace

absl::StatusOr<Descriptor> LinkPage::Create(size_t slot_count, uint64_t attachment) {
  ASSIGN_OR_RETURN(Descriptor memory, shm::NewSharedMemory(SizeOfPage(slot_count), "pelton-page"));
  ASSIGN_OR_RETURN(const shm::Mapping::Pointer mapping, shm::Mapping::Of(memory.get()));
  auto& header = *reinterpret_cast<PageHeader*>(mapping->data());
  header.magic = PageHeader::kMagic;
  header.version = kLinkVersion;
  header.slot_count = static_cast<uint32_t>(slot_count);
  header.attachment = attachment;
  return memory;
}

absl::StatusOr<LinkPage> LinkPage::Map(int descriptor, size_t slot_count) {
  ASSIGN_OR_RETURN(shm::Mapping::Pointer mapping, shm::Mapping::Of(descriptor));
  const size_t size_bytes = SizeOfPage(slot_count);
  if (mapping->size_bytes() < size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page: has ", mapping->size_bytes(), " bytes, and ", slot_count, " slots take ", size_bytes,
        "; start the trainer and the daemon from one installation"));
  }
  LinkPage page(std::move(mapping), slot_count);
  const uint64_t magic = page.header().magic;
  const uint32_t version = page.header().version;
  const uint32_t slots = page.header().slot_count;
  if (magic != PageHeader::kMagic || version != kLinkVersion || slots != slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("page: magic ", magic, ", version ", version, ", ", slots, " slots; expected ",
                     PageHeader::kMagic, ", ", kLinkVersion, " and ", slot_count,
                     "; start the trainer and the daemon from one installation"));
  }
  return page;
}

void LinkPage::SetOutcome(const absl::Status& status) const {
  PageOutcome& outcome = header().outcome;
  const size_t text_bytes = std::min(status.message().size(), PageOutcome::kTextBytes);
  outcome.code = static_cast<int32_t>(status.code());
  outcome.is_interrupt = IsInterrupted(status) ? 1 : 0;
  outcome.text_bytes = static_cast<uint32_t>(text_bytes);
  if (text_bytes > 0) std::memcpy(outcome.text, status.message().data(), text_bytes);
}

absl::Status LinkPage::outcome() const {
  // A copy first: what is checked must be what is used.
  PageOutcome outcome;
  std::memcpy(&outcome, &header().outcome, sizeof(outcome));
  if (outcome.code == 0) return absl::OkStatus();
  const std::string text(outcome.text,
                         std::min<size_t>(outcome.text_bytes, PageOutcome::kTextBytes));
  if (outcome.code < 0 || outcome.code > kLastCode) {
    return absl::InternalError(absl::StrCat("page: status code ", outcome.code, ": ", text));
  }
  if (outcome.is_interrupt != 0) return InterruptedError(text);
  return {static_cast<absl::StatusCode>(outcome.code), text};
}

}  // namespace pelton
