#include "comm/collectives/interpreter.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "comm/reduction/linear_combination.h"
#include "comm/reduction/reduction.h"

namespace pelton {
namespace {

using Direction = Transfer::Direction;

size_t WavesOf(absl::Span<const InterpretedRank> ranks) {
  size_t waves = 0;
  for (const InterpretedRank& rank : ranks) {
    for (const ProgramStrand& strand : rank.program->strands)
      waves = std::max(waves, strand.size());
  }
  return waves;
}

size_t StrandsOf(absl::Span<const InterpretedRank> ranks) {
  size_t strands = 0;
  for (const InterpretedRank& rank : ranks)
    strands = std::max(strands, rank.program->strands.size());
  return strands;
}

const ProgramWave& WaveOf(const InterpretedRank& rank, size_t strand, size_t wave) {
  static const ProgramWave* const empty = new ProgramWave;
  if (strand >= rank.program->strands.size() || wave >= rank.program->strands[strand].size()) {
    return *empty;
  }
  return rank.program->strands[strand][wave];
}

// "" or why `piece` is not in its buffer.
std::string CheckPiece(const InterpretedRank& rank, const Piece& piece) {
  const uint64_t limits[] = {rank.source_count, rank.target_count, rank.program->scratch_count,
                             rank.factor_count};
  const uint64_t limit = limits[static_cast<size_t>(piece.buffer)];
  if (piece.count <= limit && piece.offset <= limit - piece.count) return "";
  return absl::StrCat("piece [", piece.offset, ", +", piece.count, ") of buffer ",
                      static_cast<int>(piece.buffer), " with ", limit, " elements");
}

std::string CheckWave(const InterpretedRank& rank, const ProgramWave& wave) {
  for (const Transfer& transfer : wave.transfers) {
    if (std::string wrong = CheckPiece(rank, transfer.piece); !wrong.empty()) return wrong;
  }
  for (const LocalStep& step : wave.local) {
    if (step.sources.empty()) return "a step without sources";
    if (std::string wrong = CheckPiece(rank, step.target); !wrong.empty()) return wrong;
    for (const Piece& source : step.sources) {
      if (std::string wrong = CheckPiece(rank, source); !wrong.empty()) return wrong;
      if (source.count != step.target.count) return "a source that is not as long as the target";
    }
  }
  return "";
}

// Messages of one strand and wave: what is sent must be what is received.
std::string CheckMessages(absl::Span<const InterpretedRank> ranks, size_t strand, size_t wave) {
  std::map<std::pair<int32_t, int32_t>, std::deque<uint64_t>> sent;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const Transfer& t : WaveOf(ranks[r], strand, wave).transfers) {
      if (t.peer < 0 || t.peer >= static_cast<int32_t>(ranks.size()) ||
          t.peer == static_cast<int32_t>(r)) {
        return absl::StrCat("rank ", r, " has the peer ", t.peer);
      }
      if (t.direction != Direction::kSend) continue;
      sent[{static_cast<int32_t>(r), t.peer}].push_back(t.piece.count);
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const Transfer& t : WaveOf(ranks[r], strand, wave).transfers) {
      if (t.direction == Direction::kSend) continue;
      auto& from_peer = sent[{t.peer, static_cast<int32_t>(r)}];
      if (from_peer.empty() || from_peer.front() != t.piece.count) {
        return absl::StrCat("strand ", strand, ", wave ", wave, ": rank ", r, " expects ",
                            t.piece.count, " from ", t.peer, ", which sends ",
                            from_peer.empty() ? "nothing" : absl::StrCat(from_peer.front()));
      }
      from_peer.pop_front();
    }
  }
  for (const auto& [pair, counts] : sent) {
    if (!counts.empty()) {
      return absl::StrCat("strand ", strand, ", wave ", wave, ": rank ", pair.first, " sends to ",
                          pair.second, ", which does not receive");
    }
  }
  return "";
}

// Bytes that are touched, by whom, and whether they are written.
struct Touch {
  const std::byte* begin;
  const std::byte* end;
  bool writes;
};

bool Collide(const Touch& a, const Touch& b) {
  return (a.writes || b.writes) && a.begin < b.end && b.begin < a.end;
}

bool AnyCollide(const std::vector<Touch>& some, const std::vector<Touch>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Touch& a) {
    return std::any_of(others.begin(), others.end(),
                       [&](const Touch& b) { return &a != &b && Collide(a, b); });
  });
}

// One rank at work. Threads: one. Owns: its scratch memory.
class Machine {
 public:
  Machine(const InterpretedRank& rank, DType dtype, ReduceOp op, size_t world_size)
      : rank_(rank),
        dtype_(dtype),
        op_(op),
        world_size_(world_size),
        scratch_(rank.program->scratch_count * SizeOf(dtype)) {}

  std::byte* At(const Piece& piece) {
    std::byte* const bases[] = {rank_.source, rank_.target, scratch_.data(),
                                reinterpret_cast<std::byte*>(rank_.factors)};
    return bases[static_cast<size_t>(piece.buffer)] + piece.offset * SizeOf(TypeOf(piece));
  }
  uint64_t BytesOf(const Piece& piece) const { return piece.count * SizeOf(TypeOf(piece)); }

  void Run(const LocalStep& step) {
    std::vector<const std::byte*> sources;
    for (const Piece& source : step.sources) sources.push_back(At(source));
    std::byte* const target = At(step.target);
    const bool is_mean = op_ == ReduceOp::kAvg;
    if (step.kind == LocalStep::Kind::kCopy) {
      if (BytesOf(step.target) > 0) std::memmove(target, sources[0], BytesOf(step.target));
    } else if (step.kind == LocalStep::Kind::kScale) {
      Scale(step);
    } else if (step.kind == LocalStep::Kind::kCombine) {
      std::vector<Term> terms;
      for (size_t i = 0; i < sources.size(); ++i) {
        terms.push_back({sources[i], rank_.factors[i], dtype_});
      }
      LinearCombination(terms, {target, dtype_}, step.target.count);
    } else if (step.kind == LocalStep::Kind::kReduceLast && is_mean) {
      ReduceToMean(sources, {&target, 1}, step.target.count, dtype_, world_size_);
    } else {
      Reduce(sources, {&target, 1}, step.target.count, dtype_, is_mean ? ReduceOp::kSum : op_);
    }
  }

  std::vector<Touch> TouchesOf(const ProgramWave& wave, bool with_local) {
    std::vector<Touch> touches;
    auto add = [&](const Piece& piece, bool writes) {
      if (piece.count > 0) touches.push_back({At(piece), At(piece) + BytesOf(piece), writes});
    };
    for (const Transfer& t : wave.transfers) add(t.piece, t.direction == Direction::kRecv);
    if (!with_local) return touches;
    for (const LocalStep& step : wave.local) {
      for (const Piece& source : step.sources) add(source, false);
      add(step.target, true);
    }
    return touches;
  }

  std::string CheckTouches() {
    std::vector<std::vector<Touch>> by_strand;
    for (const ProgramStrand& strand : rank_.program->strands) {
      std::vector<Touch>& touches = by_strand.emplace_back();
      for (const ProgramWave& wave : strand) {
        const std::vector<Touch> in_flight = TouchesOf(wave, false);
        if (AnyCollide(in_flight, in_flight)) return "transfers of a wave touch each other";
        const std::vector<Touch> all = TouchesOf(wave, true);
        touches.insert(touches.end(), all.begin(), all.end());
      }
    }
    for (size_t i = 0; i < by_strand.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (AnyCollide(by_strand[i], by_strand[j])) return "strands touch each other's memory";
      }
    }
    return "";
  }

 private:
  void Scale(const LocalStep& step) {
    for (uint64_t i = 0; i < step.target.count; ++i) {
      rank_.factors[step.target.offset + i] *= rank_.factors[step.sources[0].offset + i];
    }
  }
  DType TypeOf(const Piece& piece) const {
    return piece.buffer == Buffer::kFactors ? DType::kFloat64 : dtype_;
  }

  const InterpretedRank& rank_;
  const DType dtype_;
  const ReduceOp op_;
  const size_t world_size_;
  std::vector<std::byte> scratch_;
};

void RunWave(absl::Span<const InterpretedRank> ranks, std::vector<Machine>& machines, size_t strand,
             size_t wave) {
  std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<std::byte>>> wires;
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const Transfer& t : WaveOf(ranks[r], strand, wave).transfers) {
      if (t.direction != Direction::kSend) continue;
      const std::byte* const from = machines[r].At(t.piece);
      wires[{static_cast<int32_t>(r), t.peer}].emplace_back(from,
                                                            from + machines[r].BytesOf(t.piece));
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (const Transfer& t : WaveOf(ranks[r], strand, wave).transfers) {
      if (t.direction == Direction::kSend) continue;
      auto& wire = wires[{t.peer, static_cast<int32_t>(r)}];
      std::copy(wire.front().begin(), wire.front().end(), machines[r].At(t.piece));
      wire.pop_front();
    }
    for (const LocalStep& step : WaveOf(ranks[r], strand, wave).local) machines[r].Run(step);
  }
}

}  // namespace

std::string CheckPrograms(absl::Span<const InterpretedRank> ranks) {
  const size_t waves = WavesOf(ranks);
  for (size_t strand = 0; strand < StrandsOf(ranks); ++strand) {
    for (size_t wave = 0; wave < waves; ++wave) {
      for (size_t r = 0; r < ranks.size(); ++r) {
        const std::string wrong = CheckWave(ranks[r], WaveOf(ranks[r], strand, wave));
        if (!wrong.empty()) return absl::StrCat("rank ", r, ", wave ", wave, ": ", wrong);
      }
      if (std::string wrong = CheckMessages(ranks, strand, wave); !wrong.empty()) return wrong;
    }
  }
  return "";
}

std::string Interpret(absl::Span<const InterpretedRank> ranks, DType dtype, ReduceOp op) {
  if (std::string wrong = CheckPrograms(ranks); !wrong.empty()) return wrong;
  std::vector<Machine> machines;
  for (const InterpretedRank& rank : ranks) machines.emplace_back(rank, dtype, op, ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::string wrong = machines[r].CheckTouches();
    if (!wrong.empty()) return absl::StrCat("rank ", r, ": ", wrong);
  }
  const size_t waves = WavesOf(ranks);
  for (size_t wave = 0; wave < waves; ++wave) {
    for (size_t strand = 0; strand < StrandsOf(ranks); ++strand)
      RunWave(ranks, machines, strand, wave);
  }
  return "";
}

}  // namespace pelton
