#include "backend/link/piece_ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

piece_ring::Board& BoardOf(const Region& ring) {
  return *reinterpret_cast<piece_ring::Board*>(ring.data());
}

uint64_t PlaceOffset(uint64_t piece, uint64_t piece_bytes) {
  return piece_ring::kBoardBytes + piece % piece_ring::kPlaces * piece_bytes;
}

// Whether somebody waits for `count`, or fewer; it does so no longer.
bool TakeWaiter(std::atomic<uint64_t>& waits, uint64_t count) {
  if (waits.load() > count) return false;
  return waits.exchange(piece_ring::kNobody) != piece_ring::kNobody;
}

}  // namespace

PieceFeeder::PieceFeeder(const Region& ring, const Tensor& tensor, uint64_t piece_bytes)
    : ring_(ring),
      board_(BoardOf(ring)),
      tensor_(tensor),
      piece_bytes_(piece_bytes),
      count_((tensor.size_bytes + piece_bytes - 1) / piece_bytes) {
  board_.filled.store(0);
  board_.reduced.store(0);
  board_.trainer_waits.store(piece_ring::kNobody);
  board_.daemon_waits.store(piece_ring::kNobody);
  while (BringIn()) continue;
}

std::byte* PieceFeeder::PlaceOf(uint64_t piece) const {
  return ring_.data() + PlaceOffset(piece, piece_bytes_);
}

uint64_t PieceFeeder::SizeOf(uint64_t piece) const {
  return std::min(piece_bytes_, tensor_.size_bytes - piece * piece_bytes_);
}

bool PieceFeeder::BringOut() {
  if (brought_out_ >= std::min(board_.reduced.load(), filled_)) return false;
  std::memcpy(tensor_.target + brought_out_ * piece_bytes_, PlaceOf(brought_out_),
              SizeOf(brought_out_));
  ++brought_out_;
  return true;
}

bool PieceFeeder::BringIn() {
  if (filled_ == count_ || filled_ == brought_out_ + piece_ring::kPlaces) return false;
  std::memcpy(PlaceOf(filled_), tensor_.source + filled_ * piece_bytes_, SizeOf(filled_));
  board_.filled.store(++filled_);
  return true;
}

bool PieceFeeder::Advance() {
  const bool has_moved = BringOut();
  return BringIn() || has_moved;
}

bool PieceFeeder::OwesNews() { return TakeWaiter(board_.daemon_waits, filled_); }

// The daemon wakes this side once it has nothing left to do: earlier the two would take turns on
// one core. The last time the operation's end does.
bool PieceFeeder::MaySleep() {
  if (filled_ == count_) return true;
  board_.trainer_waits.store(filled_);
  if (board_.reduced.load() < filled_) return true;
  board_.trainer_waits.store(piece_ring::kNobody);
  return false;
}

void PieceFeeder::Finish() {
  while (BringOut()) continue;
}

absl::StatusOr<std::unique_ptr<PieceRing>> PieceRing::Over(const Region& ring, uint64_t piece_bytes,
                                                           std::function<void()> wake) {
  const uint64_t needed = piece_ring::SizeOf(piece_bytes);
  if (ring.size_bytes() < needed) {
    return absl::InvalidArgumentError(absl::StrCat("ring: a region of ", ring.size_bytes(),
                                                   " bytes, and ", needed, " are needed"));
  }
  return std::unique_ptr<PieceRing>(new PieceRing(ring, piece_bytes, std::move(wake)));
}

PieceRing::PieceRing(const Region& ring, uint64_t piece_bytes, std::function<void()> wake)
    : ring_(ring), board_(BoardOf(ring)), piece_bytes_(piece_bytes), wake_(std::move(wake)) {}

std::optional<Location> PieceRing::Take(uint64_t index) {
  waits_ = false;
  if (board_.filled.load() <= index) {
    board_.daemon_waits.store(index + 1);
    waits_ = board_.filled.load() <= index;
    if (waits_) return std::nullopt;
    board_.daemon_waits.store(piece_ring::kNobody);
  }
  return Location{ring_.id(), PlaceOffset(index, piece_bytes_)};
}

void PieceRing::GiveBack(uint64_t index) {
  board_.reduced.store(index + 1);
  if (TakeWaiter(board_.trainer_waits, index + 1)) wake_();
}

}  // namespace pelton
