// An allreduce's private memory on its way to the daemon and back, piece by piece.
#ifndef PELTON_BACKEND_LINK_PIECE_RING_H_
#define PELTON_BACKEND_LINK_PIECE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "core/memory/region.h"

namespace pelton {

// A region of the trainer's: the words of the board, and behind them places for kPlaces pieces,
// which are used in turns. The trainer fills a place, the daemons of the host reduce it where it
// lies, the trainer copies the result out and fills the place anew. Both sides only count up.
//
// Before a side sleeps, it stores the count of the other side that it waits for, and looks again
// (sequentially consistent). The other side stores its count first and looks then. So one of the
// two sees the other's store, and no wake-up is lost. A wake-up is a record on the communicator's
// connection.
namespace piece_ring {

// Of one place each piece takes two wake-ups, and more than two do not stay in the cache: docs/
// daemon.md has the figures.
inline constexpr uint64_t kPlaces = 2;
inline constexpr size_t kBoardBytes = 4096;
inline constexpr uint64_t kNobody = ~uint64_t{0};

struct Board {
  alignas(64) std::atomic<uint64_t> filled;         // by the trainer: pieces, since the launch
  alignas(64) std::atomic<uint64_t> reduced;        // by the daemon
  alignas(64) std::atomic<uint64_t> trainer_waits;  // for so many that are reduced; or kNobody
  alignas(64) std::atomic<uint64_t> daemon_waits;   // for so many that are filled; or kNobody
};
static_assert(sizeof(Board) <= kBoardBytes);

// What a region must hold. Units: bytes.
inline constexpr uint64_t SizeOf(uint64_t piece_bytes) {
  return kBoardBytes + kPlaces * piece_bytes;
}

}  // namespace piece_ring

// The trainer's end. Threads: one at a time. Owns: nothing; the region and the tensor outlive it.
class PieceFeeder {
 public:
  // Where the operation reads and writes. Source and target are the same, or do not overlap.
  struct Tensor {
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    uint64_t size_bytes = 0;
  };

  // `ring` has room for SizeOf(piece_bytes), and no daemon uses it yet. Fills it.
  PieceFeeder(const Region& ring, const Tensor& tensor, uint64_t piece_bytes);

  // Brings one result out and one piece in, if they are due; true if there was any. Blocks: never.
  bool Advance();
  // Whether the daemon sleeps and must be told that it has been brought what it waits for. Once.
  bool OwesNews();
  // Before this side sleeps: whether nothing is due. From then on the daemon wakes it.
  bool MaySleep();
  // The daemon is through: brings out what is left.
  void Finish();

 private:
  std::byte* PlaceOf(uint64_t piece) const;
  uint64_t SizeOf(uint64_t piece) const;
  bool BringOut();
  bool BringIn();

  const Region& ring_;
  piece_ring::Board& board_;
  const Tensor tensor_;
  const uint64_t piece_bytes_;
  const uint64_t count_;  // of pieces
  uint64_t filled_ = 0;
  uint64_t brought_out_ = 0;
};

// The daemon's end. It believes nothing of the board but that its owner harms itself.
// Threads: the one that drives the communicator. Owns: nothing; the region outlives it.
class PieceRing final : public Pieces {
 public:
  // `wake` tells the trainer that it has something to do. Errors: InvalidArgument: the region is
  // too small.
  static absl::StatusOr<std::unique_ptr<PieceRing>> Over(const Region& ring, uint64_t piece_bytes,
                                                         std::function<void()> wake);

  std::optional<Location> Take(uint64_t index) override;
  void GiveBack(uint64_t index) override;
  // Whether a piece was asked for that is not there, so that the trainer sends a record.
  bool waits() const { return waits_; }

 private:
  PieceRing(const Region& ring, uint64_t piece_bytes, std::function<void()> wake);

  const Region& ring_;
  piece_ring::Board& board_;
  const uint64_t piece_bytes_;
  const std::function<void()> wake_;
  bool waits_ = false;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_PIECE_RING_H_
