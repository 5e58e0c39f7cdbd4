#include "comm/transport/sim/programs.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "comm/collectives/interpreter.h"
#include "comm/collectives/selection.h"
#include "core/base/check.h"

namespace pelton {
namespace {

absl::StatusOr<ScheduleRegistry::Entry> ScheduleFor(const Operation& operation, Rank rank,
                                                    WorldSize world_size) {
  return SelectionTable::Default().Select(ShapeOf(operation, rank, world_size));
}

WorldSize SizeOf(absl::Span<const Part> parts) {
  return WorldSize(static_cast<int32_t>(parts.size()));
}

// A rank's tensors while its program runs: the sources must stay as they are, and the targets must
// not show anything before the rank's completion. Threads: one. Owns: copies of both.
struct Copies {
  Copies(const Part& part, Rank rank, WorldSize world_size) {
    const Operation& operation = *part.operation;
    const Extent extent = ExtentOf(operation, rank, world_size);
    source.resize(extent.source_bytes);
    target.resize(extent.target_bytes);
    const bool is_root = RootReadsTarget(operation.kind) && operation.peer == rank.value();
    std::vector<std::byte>& read = is_root ? target : source;
    if (!read.empty()) std::memcpy(read.data(), part.source, read.size());
  }

  std::vector<std::byte> source;
  std::vector<std::byte> target;
};

}  // namespace

absl::Status CheckHasProgram(const Operation& operation, WorldSize world_size) {
  return ScheduleFor(operation, Rank(0), world_size).status();
}

ProgramWorld::ProgramWorld(absl::Span<const Part> parts) : parts_(parts.begin(), parts.end()) {
  const Operation& first = *parts_[0].operation;
  const auto schedule = ScheduleFor(first, Rank(0), SizeOf(parts_));
  PELTON_CHECK(schedule.ok()) << schedule.status();
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    programs_.push_back(
        schedule->factory.make(ShapeOf(first, Rank(static_cast<int32_t>(rank)), SizeOf(parts_))));
  }
}

Outcome ProgramWorld::Run() const {
  const Operation& first = *parts_[0].operation;
  const uint64_t size = pelton::SizeOf(first.dtype);
  std::vector<Copies> copies;
  copies.reserve(parts_.size());
  std::vector<InterpretedRank> ranks;
  Outcome outcome;
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    Copies& own =
        copies.emplace_back(parts_[rank], Rank(static_cast<int32_t>(rank)), SizeOf(parts_));
    outcome.stride_bytes = std::max<uint64_t>(outcome.stride_bytes, own.target.size());
    ranks.push_back({&programs_[rank], own.source.data(), own.source.size() / size,
                     own.target.data(), own.target.size() / size});
  }
  RunPrograms(ranks, first.dtype, first.reduce_op);
  outcome.bytes.resize(outcome.stride_bytes * parts_.size());
  for (size_t rank = 0; rank < parts_.size(); ++rank) {
    const std::vector<std::byte>& target = copies[rank].target;
    std::copy(target.begin(), target.end(),
              outcome.bytes.begin() + static_cast<ptrdiff_t>(rank * outcome.stride_bytes));
  }
  return outcome;
}

std::vector<absl::Time> ProgramWorld::CompletionTimes(absl::Span<const Rank> members,
                                                      absl::Time now, Network& network) const {
  size_t lanes = 0;
  size_t rounds = 0;
  for (const Program& program : programs_) {
    lanes = std::max(lanes, program.lanes.size());
    for (const ProgramLane& lane : program.lanes) rounds = std::max(rounds, lane.size());
  }
  // Shape: [lanes, ranks].
  std::vector<std::vector<absl::Time>> ready(lanes, std::vector<absl::Time>(members.size(), now));
  const uint64_t size = pelton::SizeOf(parts_[0].operation->dtype);
  for (size_t round = 0; round < rounds; ++round) {
    for (size_t lane = 0; lane < lanes; ++lane) {
      std::vector<absl::Time> next = ready[lane];
      for (size_t from = 0; from < members.size(); ++from) {
        const std::vector<ProgramLane>& own = programs_[from].lanes;
        if (lane >= own.size() || round >= own[lane].size()) continue;
        for (const Transfer& transfer : own[lane][round].transfers) {
          if (transfer.direction != Transfer::Direction::kSend) continue;
          const auto to = static_cast<size_t>(transfer.peer);
          const auto times = network.Transfer({members[from], members[to]},
                                              transfer.piece.count * size, ready[lane][from]);
          next[from] = std::max(next[from], times.left);
          next[to] = std::max(next[to], times.arrived);
        }
      }
      ready[lane] = std::move(next);
    }
  }
  std::vector<absl::Time> done(members.size(), now);
  for (const std::vector<absl::Time>& lane : ready) {
    for (size_t rank = 0; rank < done.size(); ++rank) done[rank] = std::max(done[rank], lane[rank]);
  }
  return done;
}

}  // namespace pelton
