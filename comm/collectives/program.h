// A collective as what one rank does in it: which pieces of which buffers it sends, receives and
// combines, and in which order. Made by a recipe (recipe.h), run by a ProgramRun.
#ifndef PELTON_COMM_COLLECTIVES_PROGRAM_H_
#define PELTON_COMM_COLLECTIVES_PROGRAM_H_

#include <cstdint>
#include <vector>

namespace pelton {

// The memory that pieces lie in: the operation's tensors, which may be the same memory where
// operation.h allows it; memory of the run's own; and the factors that the run is bound to, which
// are float64 whatever the tensors are.
enum class Buffer : uint8_t { kSource, kTarget, kScratch, kFactors };

// Units: elements. Threads: a value. Owns: nothing.
struct Piece {
  Buffer buffer = Buffer::kTarget;
  uint64_t offset = 0;
  uint64_t count = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// One message. Its other end is in the same strand and wave of the peer's program; several between
// two ranks in one wave match in the order in which both list them.
// Threads: a value. Owns: nothing.
struct Transfer {
  enum class Direction : uint8_t { kSend, kRecv };
  Direction direction = Direction::kSend;
  int32_t peer = 0;  // number in the program's group
  Piece piece;
};

// Work on this rank's memory. AVG adds in every step but the last one of an element.
// Threads: a value. Owns: its list of sources.
struct LocalStep {
  enum class Kind : uint8_t {
    kCopy,        // target = sources[0]
    kReduce,      // target = sources[0] op sources[1] op ...; the target may be one of them
    kReduceLast,  // the same, and AVG divides by the number of ranks, before the rounding; also
                  // with one source
    kScale,       // target[i] *= sources[0][i], of the factors both
    kCombine,     // target = f0 * sources[0] + f1 * sources[1] + ..., f0 and so on being the first
                  // factors as they are then; where each is 1 / n, the sum is divided by n instead
  };
  Kind kind = Kind::kCopy;
  std::vector<Piece> sources;  // all as long as the target
  Piece target;
};

// Transfers that are launched together, then, once all of them are done, the local steps in their
// order.
struct ProgramWave {
  std::vector<Transfer> transfers;
  std::vector<LocalStep> local;
};

// Waves, one after the other; a rank that has nothing to do in one has it empty. Strands touch
// different memory, so that one computes while another's bytes are on the wire. Waves begin in the
// order (wave, strand) on every rank, so a runner that takes few operations at a time is no
// deadlock.
using ProgramStrand = std::vector<ProgramWave>;

// Threads: immutable once made. Owns: its lists.
struct Program {
  uint64_t scratch_count = 0;  // elements
  std::vector<ProgramStrand> strands;
};

// Elements that the program's rank sends, in all.
inline uint64_t SentCount(const Program& program) {
  uint64_t count = 0;
  for (const ProgramStrand& strand : program.strands) {
    for (const ProgramWave& wave : strand) {
      for (const Transfer& transfer : wave.transfers) {
        if (transfer.direction == Transfer::Direction::kSend) count += transfer.piece.count;
      }
    }
  }
  return count;
}

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_PROGRAM_H_
