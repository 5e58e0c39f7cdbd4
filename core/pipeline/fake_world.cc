#include "core/pipeline/fake_world.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace pelton {
namespace {

std::byte* AddressOf(const Operation& operation) {
  const auto address = Resolve(operation.target(), operation.count * SizeOf(operation.dtype));
  PELTON_CHECK(address.ok()) << address.status();
  return *address;
}

template <typename T>
void AllReduceInPlace(const std::vector<Operation>& operations) {
  for (uint64_t i = 0; i < operations[0].count; ++i) {
    const ReduceOp op = operations[0].reduce_op;
    T result{};
    for (size_t rank = 0; rank < operations.size(); ++rank) {
      const T value = reinterpret_cast<const T*>(AddressOf(operations[rank]))[i];
      const T combined =
          op == ReduceOp::kMax ? std::max(result, value) : static_cast<T>(result + value);
      result = rank == 0 ? value : combined;
    }
    if (op == ReduceOp::kAvg) result /= static_cast<T>(operations.size());
    for (const Operation& each : operations) reinterpret_cast<T*>(AddressOf(each))[i] = result;
  }
}

}  // namespace

FakeWorld::FakeWorld(int32_t world_size) {
  for (int32_t rank = 0; rank < world_size; ++rank) {
    runners_.push_back(std::make_unique<FakeRunner>(*this, rank));
  }
}

FakeWorld::~FakeWorld() = default;

void FakeWorld::Kill(int32_t rank) {
  const absl::Status reason = absl::UnavailableError(absl::StrCat("rank ", rank, " has died"));
  for (auto& runner : runners_) runner->Abort(reason);
}

bool FakeWorld::TryFinish(size_t index) {
  if (held_) return false;
  std::vector<Operation> operations;
  for (const auto& runner : runners_) {
    if (runner->launches_.size() <= index) return false;
    operations.push_back(runner->launches_[index]);
  }
  absl::Status status;
  for (size_t rank = 1; rank < operations.size() && status.ok(); ++rank) {
    const std::string difference =
        DifferenceOf(operations[0], Rank(0), operations[rank], Rank(static_cast<int32_t>(rank)));
    if (!difference.empty()) status = absl::InvalidArgumentError(difference);
  }
  if (status.ok()) Execute(operations);
  for (auto& runner : runners_) {
    if (!runner->states_[index].done) runner->states_[index] = {true, status};
  }
  return true;
}

void FakeWorld::Execute(const std::vector<Operation>& operations) const {
  const Operation& first = operations[0];
  if (first.kind == OperationKind::kBarrier) return;
  if (first.kind == OperationKind::kBroadcast) {
    const std::byte* const root = AddressOf(operations[static_cast<size_t>(first.peer)]);
    for (const Operation& each : operations) {
      std::memmove(AddressOf(each), root, each.count * SizeOf(each.dtype));
    }
    return;
  }
  PELTON_CHECK(first.kind == OperationKind::kAllReduce) << NameOf(first.kind);
  switch (first.dtype) {
    case DType::kFloat32:
      return AllReduceInPlace<float>(operations);
    case DType::kFloat64:
      return AllReduceInPlace<double>(operations);
    case DType::kInt32:
      return AllReduceInPlace<int32_t>(operations);
    case DType::kUInt8:
      return AllReduceInPlace<uint8_t>(operations);
    default:
      PELTON_CHECK(false) << "the fake world does not reduce " << first.dtype;
  }
}

absl::StatusOr<Completion> FakeRunner::Launch(const Operation& operation, Stream& stream) {
  if (!aborted_.ok()) return aborted_;
  if (launches_.size() - finished_ >= limits::kMaxOperationsInFlight) {
    return absl::ResourceExhaustedError("too many operations in flight");
  }
  launches_.push_back(operation);
  launches_.back().sequence = launches_.size();
  states_.push_back({});
  return Completion{launches_.size()};
}

bool FakeRunner::Progress() {
  const size_t before = finished_;
  while (finished_ < launches_.size()) {
    if (!states_[finished_].done && !world_.TryFinish(finished_)) break;
    ++finished_;
  }
  return finished_ != before;
}

OperationRunner::State FakeRunner::Query(Completion completion) {
  PELTON_CHECK(completion.ticket > 0 && completion.ticket <= states_.size()) << completion.ticket;
  return states_[completion.ticket - 1];
}

void FakeRunner::Abort(const absl::Status& reason) {
  if (!aborted_.ok()) return;
  aborted_ = reason;
  for (State& state : states_) {
    if (!state.done) state = {true, reason};
  }
  // The peers are told.
  for (auto& peer : world_.runners_) {
    peer->Abort(absl::AbortedError(absl::StrCat("rank ", rank_, ": ", reason.message())));
  }
}

std::vector<Rank> FakeRunner::Missing() const {
  std::vector<Rank> missing;
  if (finished_ == launches_.size()) return missing;
  for (const auto& peer : world_.runners_) {
    if (peer->launches_.size() <= finished_) missing.emplace_back(peer->rank_);
  }
  return missing;
}

}  // namespace pelton
