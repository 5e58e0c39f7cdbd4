#include "comm/collectives/neighbor_communicator.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/collectives/program_run.h"
#include "comm/communicator.h"
#include "comm/tags.h"
#include "comm/transport/operation_check.h"
#include "core/base/sharing.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"

namespace pelton {
namespace {

using Direction = Transfer::Direction;

// Where a table's factors lie, see FactorsOf. Units: elements. Threads: a value. Owns: nothing.
struct FactorLayout {
  explicit FactorLayout(const WeightTable& table) : sources(table.sources().size()) {}

  Piece Arriving(size_t source) const { return {Buffer::kFactors, 1 + sources + source, 1}; }
  Piece Leaving(size_t destination) const {
    return {Buffer::kFactors, 1 + 2 * sources + destination, 1};
  }
  // All sources', as this rank gives them, and as they arrive.
  Piece AllOwn() const { return {Buffer::kFactors, 1, sources}; }
  Piece AllArriving() const { return {Buffer::kFactors, 1 + sources, sources}; }

  uint64_t sources;
};

// Threads: one. Owns: what it has written so far.
class Writer {
 public:
  Writer(const NeighborShape& shape, const WeightTable& table)
      : shape_(shape), table_(table), layout_(table) {
    uint64_t place = 0;
    for (size_t i = 0; i < table.sources().size(); ++i) {
      const uint64_t count = combines() ? shape.count : table.CountOf(i, shape.count);
      arriving_.push_back({combines() ? Buffer::kScratch : Buffer::kTarget, place, count});
      place += count;
    }
    if (combines()) program_.scratch_count = place;
    program_.strands.resize(1);
    program_.strands[0].resize(1);
  }

  Program Write() {
    const int32_t n = shape_.world_size.value();
    const int32_t rank = shape_.rank.value();
    for (size_t i = 0; i < table_.destinations().size(); ++i) {
      const int32_t peer = table_.destinations()[i].rank.value();
      edges_.push_back({(peer - rank + n) % n, Direction::kSend, i});
    }
    for (size_t i = 0; i < table_.sources().size(); ++i) {
      const int32_t peer = table_.sources()[i].rank.value();
      edges_.push_back({(rank - peer + n) % n, Direction::kRecv, i});
    }
    std::stable_sort(edges_.begin(), edges_.end(),
                     [](const Edge& a, const Edge& b) { return a.distance < b.distance; });
    for (const Edge& edge : edges_) AddMessages(edge);
    if (combines() && shape_.count > 0) AddCombination();
    return std::move(program_);
  }

 private:
  struct Edge {
    int32_t distance;
    Direction direction;
    size_t index;  // in its list
  };

  bool combines() const { return shape_.kind == OperationKind::kNeighborAllReduce; }

  void AddMessages(const Edge& edge) {
    std::vector<Transfer>& transfers = program_.strands[0][0].transfers;
    const bool sends = edge.direction == Direction::kSend;
    const std::vector<Neighbor>& neighbors = sends ? table_.destinations() : table_.sources();
    const int32_t peer = neighbors[edge.index].rank.value();
    const Piece tensor = sends ? Piece{Buffer::kSource, 0, shape_.count} : arriving_[edge.index];
    transfers.push_back({edge.direction, peer, tensor});
    if (!table_.sends_weights()) return;
    transfers.push_back(
        {edge.direction, peer, sends ? layout_.Leaving(edge.index) : layout_.Arriving(edge.index)});
  }

  void AddCombination() {
    std::vector<LocalStep>& steps = program_.strands[0][0].local;
    if (table_.sends_weights() && !arriving_.empty()) {
      steps.push_back({LocalStep::Kind::kScale, {layout_.AllArriving()}, layout_.AllOwn()});
    }
    std::vector<Piece> sources = {{Buffer::kSource, 0, shape_.count}};
    sources.insert(sources.end(), arriving_.begin(), arriving_.end());
    steps.push_back(
        {LocalStep::Kind::kCombine, std::move(sources), {Buffer::kTarget, 0, shape_.count}});
  }

  const NeighborShape shape_;
  const WeightTable& table_;
  const FactorLayout layout_;
  std::vector<Piece> arriving_;  // by source
  std::vector<Edge> edges_;
  Program program_;
};

}  // namespace

Program NeighborProgram(const NeighborShape& shape, const WeightTable& table) {
  return Writer(shape, table).Write();
}

std::vector<double> FactorsOf(const WeightTable& table) {
  std::vector<double> factors = {table.own()};
  for (const Neighbor& source : table.sources()) factors.push_back(source.weight);
  factors.resize(factors.size() + table.sources().size(), 1.0);
  for (const Neighbor& destination : table.destinations()) factors.push_back(destination.weight);
  return factors;
}

namespace {

// Of a ticket given out here: the wire counts its own from 1.
constexpr uint64_t kIsNeighborTicket = uint64_t{1} << 63;
// With their memory, for those that come: as in comm/transport/shm/neighbors.cc.
constexpr size_t kKeptFlights = 4;

// One operation, with what it keeps for the next one of its shape. Threads: one. Owns: its program,
// its factors and its scratch memory.
struct Flight {
  explicit Flight(OperationRunner& runner) : run(runner) {}

  uint64_t ticket = 0;
  bool has_begun = false;
  Operation operation;
  OperationMemory memory;
  std::shared_ptr<const WeightTable> table;  // shared: see WeightTable::Create
  Program program;
  std::vector<double> factors;
  ProgramRun run;
};

// Where this rank alone has no memory for an operation, nobody is told of it, and the peers'
// messages are still to come: this rank's next operation would take them for its own.
bool LacksMemory(const absl::Status& status) { return absl::IsResourceExhausted(status); }

// An Abort is the wire's: it ends the messages in flight, and they end the operations.
// Threads: as Communicator. Owns: the wire, and the operations in flight.
class NeighborCommunicator final : public ForwardingCommunicator {
 public:
  explicit NeighborCommunicator(std::unique_ptr<Communicator> wire)
      : ForwardingCommunicator(std::move(wire)) {}

  // What is in flight needs this object's memory, which goes before the wire.
  ~NeighborCommunicator() override {
    if (ended_.ok() && !flights_.empty()) {
      wrapped().Abort(absl::UnavailableError("closed with neighbour operations in flight"));
    }
  }

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    if (IsNeighborKind(operation.kind)) return LaunchToNeighbors(operation, stream);
    return wrapped().Launch(operation, stream);
  }
  bool Progress() override {
    const bool moved = wrapped().Progress();
    if (flights_.empty() || !ended_.ok()) return moved;
    return Advance() || moved;
  }
  State Query(Completion completion) override {
    if ((completion.ticket & kIsNeighborTicket) == 0) return wrapped().Query(completion);
    return completions_.Query({completion.ticket & ~kIsNeighborTicket});
  }
  State Follow(Completion completion, Stream& stream) override {
    if ((completion.ticket & kIsNeighborTicket) != 0) return Query(completion);
    return wrapped().Follow(completion, stream);
  }

 private:
  using FlightPointer = std::unique_ptr<Flight>;

  absl::StatusOr<Completion> LaunchToNeighbors(const Operation& operation, Stream& stream);
  FlightPointer TakeFlight(const Operation& operation, std::shared_ptr<const WeightTable> table);
  absl::Status Start(Flight& flight);
  absl::StatusOr<bool> Step(Flight& flight);
  bool Advance();
  void End(Flight& flight, const absl::Status& status);
  void FailAll(const absl::Status& reason);

  CompletionTable completions_;
  std::deque<FlightPointer> flights_;  // in launch order
  std::vector<FlightPointer> idle_;    // the last one used last
  bool moved_ = false;                 // in the last Advance
  absl::Status ended_;
};

absl::StatusOr<Completion> NeighborCommunicator::LaunchToNeighbors(const Operation& operation,
                                                                   Stream& stream) {
  ASSIGN_OR_RETURN(NeighborOperation checked,
                   CheckNeighborOperation(operation, stream, rank(), world_size()));
  RETURN_IF_ERROR(ended_);
  if (!completions_.has_room()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank().value(), ": ", completions_.in_flight(),
                     " neighbour operations of communicator ", id().value(),
                     " are in flight, as many as there may be"));
  }
  FlightPointer flight = TakeFlight(operation, std::move(checked.table));
  flight->memory = checked.memory;
  flight->ticket = completions_.Begin().completion.ticket;
  const Completion completion{flight->ticket | kIsNeighborTicket};
  flights_.push_back(std::move(flight));
  Advance();
  RETURN_IF_ERROR(ended_);  // the wire had been aborted
  return completion;
}

// One that had the same shape and table needs no new program.
NeighborCommunicator::FlightPointer NeighborCommunicator::TakeFlight(
    const Operation& operation, std::shared_ptr<const WeightTable> table) {
  FlightPointer flight;
  if (idle_.empty()) {
    flight = std::make_unique<Flight>(wrapped());
  } else {
    flight = std::move(idle_.back());
    idle_.pop_back();
  }
  const bool is_alike = flight->table == table && flight->operation.kind == operation.kind &&
                        flight->operation.count == operation.count;
  if (!is_alike) {
    flight->program =
        NeighborProgram({rank(), world_size(), operation.kind, operation.count}, *table);
  }
  flight->operation = operation;
  flight->factors = FactorsOf(*table);
  flight->table = std::move(table);
  flight->has_begun = false;
  return flight;
}

absl::Status NeighborCommunicator::Start(Flight& flight) {
  flight.has_begun = true;
  const Operation& operation = flight.operation;
  return flight.run.Start(flight.program, {.source = flight.memory.source,
                                           .target = flight.memory.target,
                                           .dtype = operation.dtype,
                                           .tag = kFirstNeighborTag + operation.tag,
                                           .factors = absl::MakeSpan(flight.factors),
                                           .outlives_differences = true,
                                           .kind = operation.kind,
                                           .sends_weights = flight.table->sends_weights(),
                                           .bucket = operation.bucket,
                                           .shape_mark = static_cast<int32_t>(operation.sequence)});
}

// True once it is over, well or with a difference. Errors: the wire's.
absl::StatusOr<bool> NeighborCommunicator::Step(Flight& flight) {
  if (!flight.has_begun) RETURN_IF_ERROR(Start(flight));
  absl::StatusOr<bool> is_done = flight.run.Advance();
  moved_ |= flight.run.moved();
  return is_done;
}

// All that are launched, and the next ones as long as the wire has room: messages of two operations
// with one tag must not mix.
bool NeighborCommunicator::Advance() {
  moved_ = false;
  for (size_t i = 0; i < flights_.size();) {
    Flight& flight = *flights_[i];
    const absl::StatusOr<bool> is_done = Step(flight);
    if (is_done.ok() && !*is_done) {
      if (!flight.run.is_issued()) return moved_;
      ++i;
      continue;
    }
    if (!is_done.ok() && (flight.run.holds_memory() || LacksMemory(is_done.status()))) {
      wrapped().Abort(is_done.status());
      FailAll(is_done.status());
      return true;
    }
    End(flight, is_done.status());
    if (is_done.ok() && idle_.size() < kKeptFlights) idle_.push_back(std::move(flights_[i]));
    flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(i));
    moved_ = true;
  }
  return moved_;
}

void NeighborCommunicator::End(Flight& flight, const absl::Status& status) {
  completions_.End(flight.ticket, Annotate(status, [this, &flight] {
                     return absl::StrCat(NameOf(flight.operation.kind), " of rank ",
                                         rank().value());
                   }));
}

// The flights stay: the wire may be writing into their memory until it is closed.
void NeighborCommunicator::FailAll(const absl::Status& reason) {
  if (!ended_.ok()) return;
  ended_ = AsEnd(reason);
  completions_.EndAll(ended_);
}

}  // namespace

std::unique_ptr<Communicator> MakeNeighborCommunicator(std::unique_ptr<Communicator> wire) {
  if (dynamic_cast<NativeNeighbors*>(wire.get()) != nullptr) return wire;
  return std::make_unique<NeighborCommunicator>(std::move(wire));
}

}  // namespace pelton
