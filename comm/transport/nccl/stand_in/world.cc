#include "comm/transport/nccl/stand_in/world.h"

#include <cstring>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "comm/transport/nccl/stand_in/controls.h"
#include "core/base/check.h"
#include "core/base/clock.h"

namespace pelton::stand_in {
namespace {

constexpr int kOk = 0;
constexpr int kSystemError = 2;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;

// Threads: any. Owns: nothing.
struct Worlds {
  Mutex mutex;
  std::map<std::string, std::weak_ptr<World>> by_id ABSL_GUARDED_BY(mutex);
};

// A send to oneself and the receive it meets: the sim transport, like MPI, has none.
void CopyToSelf(std::vector<Operation>& operations, int rank) {
  std::vector<const Operation*> sends;
  for (const Operation& operation : operations) {
    if (operation.kind == OperationKind::kSend && operation.peer == rank)
      sends.push_back(&operation);
  }
  auto send = sends.begin();
  for (const Operation& operation : operations) {
    if (operation.kind != OperationKind::kRecv || operation.peer != rank) continue;
    PELTON_CHECK(send != sends.end()) << "a receive from oneself without a send";
    std::memmove(reinterpret_cast<void*>(operation.target_offset),
                 reinterpret_cast<const void*>((*send++)->source_offset),
                 operation.count * SizeOf(operation.dtype));
  }
}

}  // namespace

std::shared_ptr<World> World::Of(const std::string& id, int rank_count) {
  static Worlds* const worlds = new Worlds;  // outlives every communicator
  MutexLock lock(&worlds->mutex);
  std::shared_ptr<World> world = worlds->by_id[id].lock();
  if (world == nullptr) {
    world = std::make_shared<World>(rank_count);
    worlds->by_id[id] = world;
  }
  return world;
}

World::World(int rank_count)
    : fabric_(WorldSize(rank_count)),
      arrived_(static_cast<size_t>(rank_count)),
      missing_(static_cast<size_t>(rank_count)),
      staying_(static_cast<size_t>(rank_count)) {}

void World::Arrive(int rank) {
  MutexLock lock(&mutex_);
  auto arrived = arrived_[static_cast<size_t>(rank)];
  if (arrived) return;
  arrived = true;
  if (--missing_ > 0) return;
  const Group group = Group::World(fabric_.world_size());
  auto opened = fabric_.OpenAll(CommunicatorId(1), group);
  PELTON_CHECK(opened.ok()) << opened.status();
  communicators_ = *std::move(opened);
}

std::unique_ptr<Communicator> World::Take(int rank) {
  MutexLock lock(&mutex_);
  if (missing_ > 0) return nullptr;
  return std::move(communicators_[static_cast<size_t>(rank)]);
}

void World::Leave() {
  MutexLock lock(&mutex_);
  --staying_;
  left_.SignalAll();
}

void World::AwaitLeft() {
  MutexLock lock(&mutex_);
  // Ranks that have not met have nothing of each other's.
  while (missing_ == 0 && staying_ > 0) left_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
}

ThreadArrival::ThreadArrival(std::shared_ptr<World> world, int rank)
    : world_(std::move(world)), rank_(rank) {
  world_->Arrive(rank);
}

}  // namespace pelton::stand_in

using pelton::MutexLock;
using pelton::stand_in::Controls;

ncclComm::ncclComm(std::unique_ptr<pelton::stand_in::Arrival> arrival, int rank)
    : arrival_(std::move(arrival)),
      rank_(rank),
      order_(std::make_shared<pelton::stand_in::OwnMarks>()),
      busy_polls_(Controls::Get().busy_polls()) {
  Controls::Get().Count(1);
}

ncclComm::~ncclComm() { Controls::Get().Count(-1 - registrations_); }

void ncclComm::CountRegistrations(int change) {
  registrations_ += change;
  Controls::Get().Count(change);
}

int ncclComm::Poll() {
  {
    MutexLock lock(&mutex_);
    if (remote_error_ != 0) return remote_error_;
  }
  if (const int broken = Controls::Get().broken()) return broken;
  if (communicator_ == nullptr) {
    auto taken = arrival_->Take();
    if (!taken.ok()) {
      last_error_ = std::string(taken.status().message());
      return pelton::stand_in::kSystemError;
    }
    communicator_ = *std::move(taken);
  }
  if (communicator_ == nullptr) return pelton::stand_in::kInProgress;
  if (when_connected_ == nullptr) return pelton::stand_in::kOk;
  if (busy_polls_-- > 0) return pelton::stand_in::kInProgress;
  std::exchange(when_connected_, nullptr)();
  return pelton::stand_in::kOk;
}

int ncclComm::Enqueue(std::vector<pelton::Operation> operations, CUstream_st* stream) {
  if (std::exchange(has_connected_, true) || busy_polls_ == 0) {
    Push(std::move(operations), stream);
    return pelton::stand_in::kOk;
  }
  when_connected_ = [this, operations = std::move(operations), stream] {
    Push(operations, stream);
  };
  return pelton::stand_in::kInProgress;
}

// One after the other, whatever streams they are on.
void ncclComm::Push(std::vector<pelton::Operation> operations, CUstream_st* stream) {
  const uint64_t mark = order_->Mark();
  auto work = [this, order = order_, mark, operations = std::move(operations)] {
    order->WaitFor(mark - 1);
    Run(operations);
    order->Reach(mark);
  };
  pelton::stand_in::StreamOf(stream).Push(std::move(work));
}

void ncclComm::Run(const std::vector<pelton::Operation>& operations) {
  std::vector<pelton::Operation> all = operations;
  pelton::stand_in::CopyToSelf(all, rank_);
  std::vector<pelton::Completion> completions;
  pelton::HostStream stream;
  for (const pelton::Operation& operation : all) {
    if (pelton::IsPointToPoint(operation.kind) && operation.peer == rank_) continue;
    const auto completion = communicator_->Launch(operation, stream);
    if (!Succeeded(completion.status())) return HangUntilAborted();
    completions.push_back(*completion);
  }
  for (pelton::Completion completion : completions) {
    if (!Await(completion)) return HangUntilAborted();
  }
}

// Otherwise NCCL hangs; of a lost peer it hears from its network.
bool ncclComm::Succeeded(const absl::Status& status) {
  if (absl::IsUnavailable(status)) {
    MutexLock lock(&mutex_);
    remote_error_ = pelton::stand_in::kRemoteError;
  }
  return status.ok();
}

bool ncclComm::Await(pelton::Completion completion) {
  while (true) {
    const auto state = communicator_->Query(completion);
    if (state.done) return Succeeded(state.status);
    if (!communicator_->Progress()) {
      communicator_->Park(pelton::Clock::Real().Now() + absl::Milliseconds(20));
    }
  }
}

void ncclComm::HangUntilAborted() {
  MutexLock lock(&mutex_);
  while (!aborted_) changed_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
}

int ncclComm::Finalize() {
  when_connected_ = [] {};
  busy_polls_ = Controls::Get().busy_polls();
  return busy_polls_ > 0 ? pelton::stand_in::kInProgress : Poll();
}

void ncclComm::Abort() {
  {
    MutexLock lock(&mutex_);
    aborted_ = true;
    changed_.SignalAll();
  }
  if (communicator_ != nullptr) communicator_->Abort(absl::CancelledError("ncclCommAbort"));
  order_->WaitFor(order_->last());
}

void ncclComm::AwaitOthersEnd() {
  arrival_->Leave();
  arrival_->AwaitLeft();
}
