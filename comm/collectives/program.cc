#include "comm/collectives/program.h"

namespace pelton {

uint64_t SentCount(const Program& program) {
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
