#include "comm/transport/sim/outcome.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <utility>

#include "comm/collectives/selection.h"
#include "comm/reduction/reference.h"
#include "core/base/check.h"

namespace pelton {
namespace {

uint64_t BytesOf(const Operation& operation) { return operation.count * SizeOf(operation.dtype); }

void Append(std::vector<std::byte>& bytes, const std::byte* from, uint64_t size_bytes) {
  bytes.insert(bytes.end(), from, from + size_bytes);
}

// The reduction of `count` elements from `offset_bytes` on of every source.
void AppendReduction(std::vector<std::byte>& bytes, absl::Span<const Part> parts,
                     uint64_t offset_bytes) {
  const Operation& operation = *parts[0].operation;
  if (operation.count == 0) return;
  std::vector<const std::byte*> sources;
  for (const Part& part : parts) sources.push_back(part.source + offset_bytes);
  const size_t begin = bytes.size();
  bytes.resize(begin + BytesOf(operation));
  PELTON_CHECK_OK(ReferenceReduce(sources, bytes.data() + begin, operation.count, operation.dtype,
                                  operation.reduce_op));
}

Outcome AllToAll(absl::Span<const Part> parts, uint64_t chunk_bytes) {
  Outcome outcome{{}, chunk_bytes * parts.size()};
  for (size_t receiver = 0; receiver < parts.size(); ++receiver) {
    for (const Part& sender : parts) {
      Append(outcome.bytes, sender.source + receiver * chunk_bytes, chunk_bytes);
    }
  }
  return outcome;
}

// The flat recipe of an allreduce: everybody sends each rank its slice, which that rank reduces
// and sends to everybody.
std::vector<absl::Time> AllReduceTimes(const Operation& operation, absl::Span<const Rank> members,
                                       absl::Time now, Network& network) {
  const size_t n = members.size();
  auto slice_bytes = [&](size_t rank) {
    return (operation.count * (rank + 1) / n - operation.count * rank / n) *
           SizeOf(operation.dtype);
  };
  std::vector<absl::Time> reduced(n, now);
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const auto times = network.Transfer({members[from], members[to]}, slice_bytes(to), now);
      reduced[to] = std::max(reduced[to], times.arrived);
    }
  }
  std::vector<absl::Time> done = reduced;
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const auto times =
          network.Transfer({members[from], members[to]}, slice_bytes(from), reduced[from]);
      done[from] = std::max(done[from], times.left);
      done[to] = std::max(done[to], times.arrived);
    }
  }
  return done;
}

// Whether `from` sends to `to` in a one-step recipe.
bool Sends(const Operation& operation, size_t from, size_t to) {
  const auto root = static_cast<size_t>(operation.peer);
  switch (operation.kind) {
    case OperationKind::kReduce:
    case OperationKind::kGather:
      return to == root;
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return from == root;
    default:
      return true;
  }
}

absl::StatusOr<RecipeRegistry::Entry> RecipeFor(const Operation& operation, WorldSize world_size) {
  return SelectionTable::Default().Select(ShapeOf(operation, Rank(0), world_size));
}

// One rank at work on copies of its tensors: its source must stay as it is, and its target must not
// show anything before the rank's completion. Threads: one. Owns: the copies and the program.
class Machine {
 public:
  Machine(const Part& part, Rank rank, WorldSize world_size, Program program)
      : operation_(*part.operation), world_size_(world_size), program_(std::move(program)) {
    const Extent extent = ExtentOf(operation_, rank, world_size);
    source_.resize(extent.source_bytes);
    target_.resize(extent.target_bytes);
    scratch_.resize(program_.scratch_count * SizeOf(operation_.dtype));
    const bool is_root = RootReadsTarget(operation_.kind) && operation_.peer == rank.value();
    std::vector<std::byte>& read = is_root ? target_ : source_;
    if (!read.empty()) std::memcpy(read.data(), part.source, read.size());
  }

  const Program& program() const { return program_; }
  const std::vector<std::byte>& target() const { return target_; }
  uint64_t BytesOf(const Piece& piece) const { return piece.count * SizeOf(operation_.dtype); }
  std::byte* At(const Piece& piece) {
    std::vector<std::byte>& buffer = piece.buffer == Buffer::kSource   ? source_
                                     : piece.buffer == Buffer::kTarget ? target_
                                                                       : scratch_;
    return buffer.data() + piece.offset * SizeOf(operation_.dtype);
  }
  // Null: it has no such wave.
  const ProgramWave* WaveOf(size_t strand, size_t wave) const {
    if (strand >= program_.strands.size() || wave >= program_.strands[strand].size())
      return nullptr;
    return &program_.strands[strand][wave];
  }
  void Run(const LocalStep& step);

 private:
  const Operation operation_;
  const WorldSize world_size_;
  const Program program_;
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
  std::vector<std::byte> scratch_;
};

void Machine::Run(const LocalStep& step) {
  std::vector<const std::byte*> sources;
  for (const Piece& source : step.sources) sources.push_back(At(source));
  std::byte* const target = At(step.target);
  const uint64_t count = step.target.count;
  const bool is_mean = operation_.reduce_op == ReduceOp::kAvg;
  if (step.kind == LocalStep::Kind::kCopy) {
    std::memmove(target, sources[0], BytesOf(step.target));
  } else if (step.kind == LocalStep::Kind::kReduceLast && is_mean) {
    PELTON_CHECK_OK(ReferenceReduceToMean(sources, target, count, operation_.dtype,
                                          static_cast<size_t>(world_size_.value())));
  } else {
    PELTON_CHECK(step.kind <= LocalStep::Kind::kReduceLast) << "a collective has no factors";
    PELTON_CHECK_OK(ReferenceReduce(sources, target, count, operation_.dtype,
                                    is_mean ? ReduceOp::kSum : operation_.reduce_op));
  }
}

// The messages and the time of all ranks. Threads: one. Owns: the machines.
class World {
 public:
  World(absl::Span<const Part> parts, absl::Span<const Rank> members, absl::Time now,
        Network& network);

  void RunAll();
  ProgramResult Result() const;

 private:
  using Wires = std::map<std::pair<size_t, size_t>, std::deque<std::vector<std::byte>>>;

  void RunWave(size_t strand, size_t wave);
  void Send(size_t from, const Transfer& transfer, size_t strand);

  const absl::Span<const Rank> members_;
  Network& network_;
  std::vector<Machine> machines_;
  size_t waves_ = 0;
  // When a strand's next wave may begin. Shape: [strands, ranks].
  std::vector<std::vector<absl::Time>> ready_;
  std::vector<absl::Time> next_;  // the same after this wave
  Wires wires_;                   // what is sent and not received, by sender and receiver
  std::vector<absl::Time> done_;
};

World::World(absl::Span<const Part> parts, absl::Span<const Rank> members, absl::Time now,
             Network& network)
    : members_(members), network_(network), done_(members.size(), now) {
  const Operation& first = *parts[0].operation;
  const WorldSize size(static_cast<int32_t>(parts.size()));
  const auto recipe = RecipeFor(first, size);
  PELTON_CHECK(recipe.ok()) << recipe.status();
  size_t strands = 0;
  machines_.reserve(parts.size());
  for (int32_t r = 0; r < size.value(); ++r) {
    const ProgramShape shape = ShapeOf(first, Rank(r), size);
    const Program& program =
        machines_
            .emplace_back(parts[static_cast<size_t>(r)], Rank(r), size, recipe->factory.make(shape))
            .program();
    strands = std::max(strands, program.strands.size());
    for (const ProgramStrand& strand : program.strands) waves_ = std::max(waves_, strand.size());
  }
  ready_.assign(strands, done_);
}

void World::Send(size_t from, const Transfer& transfer, size_t strand) {
  const auto to = static_cast<size_t>(transfer.peer);
  Machine& sender = machines_[from];
  const uint64_t bytes = sender.BytesOf(transfer.piece);
  const std::byte* const begin = sender.At(transfer.piece);
  wires_[{from, to}].emplace_back(begin, begin + bytes);
  const auto times = network_.Transfer({members_[from], members_[to]}, bytes, ready_[strand][from]);
  next_[from] = std::max(next_[from], times.left);
  next_[to] = std::max(next_[to], times.arrived);
}

void World::RunWave(size_t strand, size_t wave) {
  next_ = ready_[strand];
  for (size_t from = 0; from < machines_.size(); ++from) {
    const ProgramWave* const own = machines_[from].WaveOf(strand, wave);
    if (own == nullptr) continue;
    for (const Transfer& transfer : own->transfers) {
      if (transfer.direction == Transfer::Direction::kSend) Send(from, transfer, strand);
    }
  }
  for (size_t to = 0; to < machines_.size(); ++to) {
    const ProgramWave* const own = machines_[to].WaveOf(strand, wave);
    if (own == nullptr) continue;
    for (const Transfer& transfer : own->transfers) {
      if (transfer.direction == Transfer::Direction::kSend) continue;
      auto& wire = wires_[{static_cast<size_t>(transfer.peer), to}];
      std::copy(wire.front().begin(), wire.front().end(), machines_[to].At(transfer.piece));
      wire.pop_front();
    }
    for (const LocalStep& step : own->local) machines_[to].Run(step);
  }
  ready_[strand] = next_;
}

void World::RunAll() {
  for (size_t wave = 0; wave < waves_; ++wave) {
    for (size_t strand = 0; strand < ready_.size(); ++strand) RunWave(strand, wave);
  }
  for (const std::vector<absl::Time>& strand : ready_) {
    for (size_t r = 0; r < done_.size(); ++r) done_[r] = std::max(done_[r], strand[r]);
  }
}

ProgramResult World::Result() const {
  ProgramResult result{{}, done_};
  uint64_t& stride = result.outcome.stride_bytes;
  for (const Machine& machine : machines_) {
    stride = std::max<uint64_t>(stride, machine.target().size());
  }
  result.outcome.bytes.resize(stride * machines_.size());
  for (size_t r = 0; r < machines_.size(); ++r) {
    const std::vector<std::byte>& target = machines_[r].target();
    std::copy(target.begin(), target.end(),
              result.outcome.bytes.begin() + static_cast<ptrdiff_t>(r * stride));
  }
  return result;
}

}  // namespace

Outcome RunCollective(absl::Span<const Part> parts) {
  const Operation& operation = *parts[0].operation;
  const uint64_t chunk_bytes = BytesOf(operation);
  Outcome outcome;
  if (chunk_bytes == 0) return outcome;
  switch (operation.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      AppendReduction(outcome.bytes, parts, 0);
      break;
    case OperationKind::kReduceScatter:
      outcome.stride_bytes = chunk_bytes;
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        AppendReduction(outcome.bytes, parts, rank * chunk_bytes);
      }
      break;
    case OperationKind::kAllGather:
    case OperationKind::kGather:
      for (const Part& part : parts) Append(outcome.bytes, part.source, chunk_bytes);
      break;
    case OperationKind::kBroadcast:
      Append(outcome.bytes, parts[static_cast<size_t>(operation.peer)].source, chunk_bytes);
      break;
    case OperationKind::kScatter:
      outcome.stride_bytes = chunk_bytes;
      Append(outcome.bytes, parts[static_cast<size_t>(operation.peer)].source,
             chunk_bytes * parts.size());
      break;
    case OperationKind::kAllToAll:
      return AllToAll(parts, chunk_bytes);
    default:
      break;  // a barrier carries nothing
  }
  return outcome;
}

std::vector<absl::Time> CompletionTimes(const Operation& operation, absl::Span<const Rank> members,
                                        absl::Time now, Network& network) {
  if (operation.kind == OperationKind::kAllReduce) {
    return AllReduceTimes(operation, members, now, network);
  }
  const uint64_t bytes = operation.kind == OperationKind::kBarrier ? 0 : BytesOf(operation);
  std::vector<absl::Time> done(members.size(), now);
  for (size_t from = 0; from < members.size(); ++from) {
    for (size_t to = 0; to < members.size(); ++to) {
      if (!Sends(operation, from, to)) continue;
      const auto times = network.Transfer({members[from], members[to]}, bytes, now);
      done[from] = std::max(done[from], times.left);
      done[to] = std::max(done[to], times.arrived);
    }
  }
  return done;
}

absl::Status CheckHasProgram(const Operation& operation, WorldSize world_size) {
  return RecipeFor(operation, world_size).status();
}

ProgramResult RunAsPrograms(absl::Span<const Part> parts, absl::Span<const Rank> members,
                            absl::Time now, Network& network) {
  World world(parts, members, now, network);
  world.RunAll();
  return world.Result();
}

}  // namespace pelton
