#include "comm/collectives/program.h"

namespace pelton {

uint64_t SentCount(const Program& program) {
  uint64_t count = 0;
  for (const ProgramLane& lane : program.lanes) {
    for (const ProgramRound& round : lane) {
      for (const Transfer& transfer : round.transfers) {
        if (transfer.direction == Transfer::Direction::kSend) count += transfer.piece.count;
      }
    }
  }
  return count;
}

}  // namespace pelton
