#include "comm/transport/shm/context.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/shm/remote_memory.h"
#include "core/base/clock.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"
#include "core/memory/region.h"

namespace pelton::shm {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free, "the words are shared by processes");

constexpr uint64_t kMagic = 0x50454C544F4E0003;  // "PELTON"
constexpr uint32_t kLayoutVersion = 5;
constexpr size_t kPageBytes = limits::kRegionAlignmentBytes;

constexpr size_t PageAligned(size_t size_bytes) {
  return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// A peer that was stopped in the middle of a write must not hold up the others for longer. What one
// task writes takes a small part of that.
constexpr absl::Duration kGrace = absl::Seconds(1);

}  // namespace

Arena::Arena(int world_size) : world_size_(world_size) {
  const auto n = static_cast<size_t>(world_size);
  ranks_offset_ = PageAligned(sizeof(ArenaHeader));
  eager_offset_ = ranks_offset_ + PageAligned(n * sizeof(RankBlock));
  channels_offset_ = eager_offset_ + PageAligned(n * kDepth * kEagerBytes);
  edge_queues_offset_ = channels_offset_ + PageAligned(n * n * sizeof(Channel));
  size_bytes_ = edge_queues_offset_ + PageAligned(n * n * sizeof(EdgeQueue));
}

absl::StatusOr<Descriptor> Arena::Create(CommunicatorId id, Generation generation,
                                         WorldSize world_size) {
  Arena arena(world_size.value());
  ASSIGN_OR_RETURN(Descriptor memory, NewSharedMemory(arena.size_bytes_, "pelton-communicator"));
  // What every collective uses. Channels and queues, of which there are n * n, take memory when
  // they are used.
  if (fallocate(memory.get(), 0, 0, static_cast<off_t>(arena.channels_offset_)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "control block: fallocate of ", arena.channels_offset_, " bytes: ", ErrorText(errno)));
  }
  ASSIGN_OR_RETURN(arena.mapping_, Mapping::Of(memory.get()));
  ArenaHeader& header = arena.header();
  header.magic = kMagic;
  header.layout_version = kLayoutVersion;
  header.size_bytes = arena.size_bytes_;
  header.world_size = static_cast<uint32_t>(world_size.value());
  header.communicator = id.value();
  header.generation = generation.value();
  return memory;
}

absl::StatusOr<Arena> Arena::Map(int descriptor, CommunicatorId id, Generation generation,
                                 WorldSize world_size) {
  Arena arena(world_size.value());
  ASSIGN_OR_RETURN(arena.mapping_, Mapping::Of(descriptor));
  if (arena.mapping_->size_bytes() < sizeof(ArenaHeader)) {
    return absl::InvalidArgumentError("control block: too small");
  }
  const ArenaHeader& header = arena.header();
  if (header.magic != kMagic || header.layout_version != kLayoutVersion ||
      header.size_bytes != arena.mapping_->size_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("control block: layout version ", header.layout_version, ", ours is ",
                     kLayoutVersion, "; the ranks run different builds"));
  }
  if (header.world_size != static_cast<uint32_t>(world_size.value()) ||
      header.communicator != id.value() || header.generation != generation.value() ||
      header.size_bytes != arena.size_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "communicator ", id.value(), " of generation ", generation.value(), " with ",
        world_size.value(), " ranks here, but communicator ", header.communicator,
        " of generation ", header.generation, " with ", header.world_size, " ranks on its rank 0"));
  }
  return arena;
}

Location Context::Reachable(Location location, std::byte* address) const {
  const RegionId region = location.region;
  const bool is_private = region == kPrivateRegion;
  if (is_private || (registered->Contains(region) && !IsUnshared(region))) return location;
  return {kPrivateRegion, reinterpret_cast<uintptr_t>(address)};
}

void Context::Ring(int peer) const { arena.rank(peer).doorbell.Ring(arena.header().parked); }

void Context::RingAll() const {
  if (arena.header().parked.load() == 0) return;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank) arena.rank(peer).doorbell.RingIfParked();
  }
}

absl::Status Reach::Read(uint64_t offset, std::byte* target, size_t size_bytes) const {
  if (size_bytes == 0) return absl::OkStatus();
  if (data == nullptr) return ReadMemory(pid, address + offset, target, size_bytes);
  if (data + offset != target) std::memcpy(target, data + offset, size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<Reach> ReachOf(const Context& context, int peer, Location location,
                              uint64_t size_bytes) {
  Reach reach;
  reach.pid = context.pid(peer);
  if (location.region == kPrivateRegion) {
    reach.address = location.offset;
    if (reach.pid == getpid()) {
      reach.data = reinterpret_cast<std::byte*>(static_cast<uintptr_t>(location.offset));
    }
    return reach;
  }
  reach.mapping = context.links.FindRegion(context.world_ranks[peer], location.region);
  if (reach.mapping == nullptr) return absl::NotFoundError("not registered yet");
  const uint64_t room = reach.mapping->size_bytes();
  if (location.offset > room || size_bytes > room - location.offset) {
    return absl::OutOfRangeError(
        absl::StrCat("rank ", context.name(peer), ": offset ", location.offset, " with ",
                     size_bytes, " bytes is outside its region ", location.region.value()));
  }
  reach.data = reach.mapping->data() + location.offset;
  return reach;
}

// Why no abort is lost. The first one to begin writes the reason and finishes; all others leave the
// record as it is. A rank that sleeps, or is about to, is woken: it has read its doorbell before it
// looked at the state, and the doorbell is rung here after the state was stored, whether it says
// that it is parked or not. So it saw the state, or its futex finds another doorbell. The same
// holds for a rank that looked before the reason was there, because the doorbells come after that.
// A writer that dies in between leaves a reason that never comes: the transport notices the death
// and throws here on each survivor, which then reports its own reason (Reason) and rings again.
// doorbell_model_test.cc runs this in every order.
void AbortSwitch::Throw(const absl::Status& reason, bool is_death) {
  if (is_death) is_own_death_.store(true);
  const absl::Status end = AsEnd(reason);
  own_reason_.Give(end);
  AbortRecord& record = context_.arena.header().abort;
  if (record.state.Begin()) {
    record.code = static_cast<int32_t>(end.code());
    record.is_death = is_death;
    record.rank = context_.name(context_.rank);
    const absl::string_view text = CutToFit(end.message(), sizeof record.text - 1);
    std::memcpy(record.text, text.data(), text.size());
    record.text[text.size()] = 0;
    record.state.Finish();
  }
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    context_.arena.rank(peer).doorbell.RingAlways();
  }
}

std::optional<absl::Status> AbortSwitch::Reason() const {
  const AbortRecord& record = context_.arena.header().abort;
  const absl::Status own = own_reason_.Get();
  if (!record.state.is_ready()) {
    // Its writer may never come back.
    if (own.ok()) return std::nullopt;
    return own;
  }
  if (record.rank == context_.name(context_.rank) && !own.ok()) return own;
  const std::string text(record.text, strnlen(record.text, sizeof record.text));
  const auto code = static_cast<absl::StatusCode>(record.code);
  if (record.is_death) return absl::Status(code, text);
  return absl::Status(code, absl::StrCat("rank ", record.rank, " aborted: ", text));
}

bool AbortSwitch::IsDeath() const {
  const AbortRecord& record = context_.arena.header().abort;
  // While it is being written, this rank may already end what it runs by its own reason.
  return record.state.is_ready() ? record.is_death != 0 : is_own_death_.load();
}

AbortSwitch::Peers AbortSwitch::CloseMemory() {
  const absl::Time now = Clock::Real().Now();
  if (!since_) since_ = now;
  context_.arena.rank(context_.rank).gate.Close();
  const bool has_grace = now - *since_ <= kGrace;
  for (int peer = 0; peer < context_.world_size(); ++peer) {
    const uint32_t busy = context_.arena.rank(peer).gate.busy();
    if (peer == context_.rank || busy == MemoryGate::kIdle) continue;
    if (busy == MemoryGate::kReading && !has_grace) continue;
    if (!context_.links.LossOf(context_.world_ranks[peer]).ok()) continue;
    return has_grace ? Peers::kBusy : Peers::kStopped;
  }
  return Peers::kQuiet;
}

}  // namespace pelton::shm
