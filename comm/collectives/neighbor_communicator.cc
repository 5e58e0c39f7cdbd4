#include "comm/collectives/neighbor_communicator.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/collectives/neighbor_program.h"
#include "comm/collectives/program_run.h"
#include "comm/forwarding_communicator.h"
#include "comm/tags.h"
#include "comm/transport/native_neighbors.h"
#include "comm/transport/neighbor_check.h"
#include "core/base/status.h"
#include "core/pipeline/completion_table.h"
#include "core/pipeline/weight_table.h"

namespace pelton {
namespace {

// Of a ticket given out here: the wire counts its own from 1.
constexpr uint64_t kIsNeighborTicket = uint64_t{1} << 63;

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
  absl::Status WaitOnStream(Completion completion, Stream& stream, absl::Time deadline) override {
    if ((completion.ticket & kIsNeighborTicket) == 0) {
      return wrapped().WaitOnStream(completion, stream, deadline);
    }
    return absl::InvalidArgumentError("stream: neighbour operations run on the host; await them");
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
    if (!is_done.ok() && flight.run.holds_memory()) {
      wrapped().Abort(is_done.status());
      FailAll(is_done.status());
      return true;
    }
    End(flight, is_done.status());
    if (is_done.ok()) idle_.push_back(std::move(flights_[i]));
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
  ended_ = reason;
  completions_.EndAll(reason);
}

}  // namespace

std::unique_ptr<Communicator> MakeNeighborCommunicator(std::unique_ptr<Communicator> wire) {
  if (dynamic_cast<NativeNeighbors*>(wire.get()) != nullptr) return wire;
  return std::make_unique<NeighborCommunicator>(std::move(wire));
}

}  // namespace pelton
