#include "backend/backend.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/control/grpc_control.h"
#include "comm/control/host_identity.h"
#include "core/actor/spawn.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

std::string Here(const BackendOptions& options) {
  return absl::StrCat("rank ", options.rank.value(), " of job '", options.job, "'");
}

absl::Status CheckOptions(const BackendOptions& options) {
  const int32_t world_size = options.world_size.value();
  if (world_size < 1 || world_size > limits::kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: ", world_size, " is not in [1, ", limits::kMaxWorldSize, "]"));
  }
  if (options.rank.value() < 0 || options.rank.value() >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: ", options.rank.value(), " is not in [0, ", world_size, ")"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> ServeCoordinatorAt(const std::string& address,
                                                                      const std::string& token) {
  const size_t colon = address.rfind(':');
  CoordinatorOptions options;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &options.port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator address: '", address, "' is not host:port"));
  }
  options.interface = address.substr(0, colon);
  options.token = token;
  return CoordinatorServer::Start(options);
}

absl::StatusOr<std::unique_ptr<Backend>> Backend::Start(const BackendOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Backend> backend(new Backend(options));
  if (absl::Status joined = backend->Join(); !joined.ok()) return Annotate(joined, Here(options));
  return backend;
}

Backend::~Backend() { (void)Stop(Clock::Real().Now() + limits::kStopTimeout); }

absl::Status Backend::Join() {
  const absl::Time deadline = Clock::Real().Now() + options_.join_timeout;
  std::string address = options_.coordinator_address;
  if (options_.serves_coordinator) {
    ASSIGN_OR_RETURN(coordinator_, ServeCoordinatorAt(address, options_.token));
    address = coordinator_->address();
  }
  ASSIGN_OR_RETURN(control_, MakeGrpcControl({.address = address, .token = options_.token}));
  JoinRequest request;
  request.job = options_.job;
  request.rank = options_.rank;
  request.world_size = options_.world_size;
  request.host = HostIdentity::OfThisProcess();
  ASSIGN_OR_RETURN(membership_, control_->Join(request, deadline));
  RETURN_IF_ERROR(Connect(deadline));
  StartRoot();
  return absl::OkStatus();
}

void Backend::StartRoot() {
  ThreadExecutor::Options thread;
  thread.name = "pelton-root";
  root_executor_ = std::make_unique<ThreadExecutor>(std::move(thread));
  root_ = Spawn<Root>(*root_executor_, {}, static_cast<FailureSink*>(this));
  // A full mailbox holds as bad news as this order: it may be dropped.
  control_->OnOrder([root = root_](const Order& order) {
    (void)root.Send(OrderReceived{order.kind, order.reason});
  });
}

absl::Status Backend::Connect(absl::Time deadline) {
  for (const Member& member : membership_.members) {
    if (member.host.SameHost(HostIdentity::OfThisProcess())) {
      host_ranks_.push_back(member.rank);
      continue;
    }
    return absl::UnimplementedError(
        absl::StrCat("rank ", member.rank.value(), " is on another host (boot id ",
                     member.host.boot_id, "): only ranks of one host can be joined yet"));
  }
  ASSIGN_OR_RETURN(const TransportRegistry::Entry entry, TransportRegistry::Get().Find("shm"));
  TransportOptions transport;
  transport.rank = options_.rank;
  transport.world_size = options_.world_size;
  transport.job_token = options_.token;
  transport.bootstrap = control_.get();
  transport.deadline = deadline;
  ASSIGN_OR_RETURN(transport_, entry.factory(transport));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> Backend::Open(const Group& group) {
  for (Rank member : group.members) {
    if (member.value() < 0 || member >= Rank(world_size().value())) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks: ", member.value(), " is not in [0, ", world_size().value(), ")"));
    }
  }
  RETURN_IF_ERROR(failure());
  // Every rank of the world opens the same sequence, so the number names the same communicator
  // everywhere.
  const CommunicatorId id(next_communicator_++);
  return transport_->Open(id, group, Clock::Real().Now() + options_.join_timeout);
}

void Backend::Watch(Communicator* communicator) {
  absl::Status failed;
  {
    MutexLock lock(&mutex_);
    watched_.insert(communicator);
    // A region that peers cannot map is read as private memory: slower, never wrong.
    for (const Region* region : shared_) (void)communicator->Register(*region);
    failed = failure_;
  }
  if (!failed.ok()) communicator->Abort(failed);
}

void Backend::Unwatch(Communicator* communicator) {
  MutexLock lock(&mutex_);
  watched_.erase(communicator);
}

void Backend::Share(const Region& region) {
  MutexLock lock(&mutex_);
  shared_.push_back(&region);
  for (Communicator* communicator : watched_) (void)communicator->Register(region);
}

absl::Status Backend::failure() const {
  MutexLock lock(&mutex_);
  return failure_;
}

// The lock is held while aborting, so that nothing watched can die meanwhile; Abort never blocks.
void Backend::Fail(const absl::Status& reason) {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  failure_ = Annotate(reason, Here(options_));
  if (transport_ != nullptr) transport_->Abort(failure_);
  for (Communicator* communicator : watched_) communicator->Abort(failure_);
}

void Backend::Report(const absl::Status& reason) {
  (void)control_->Report(options_.rank, reason, Clock::Real().Now() + limits::kHeartbeatInterval);
}

absl::Status Backend::Stop(absl::Time deadline) {
  {
    MutexLock lock(&mutex_);
    if (stopped_) return absl::OkStatus();
    stopped_ = true;
  }
  // After this no order comes, and a rank that left before us is no failure any more.
  absl::Status left = control_ != nullptr ? control_->Leave(deadline) : absl::OkStatus();
  if (root_executor_ != nullptr) {
    if (absl::Status ended = root_executor_->Shutdown(deadline); left.ok()) left = ended;
  }
  if (coordinator_ != nullptr) {
    // The other ranks' goodbyes must find a coordinator.
    if (absl::Status empty = coordinator_->AwaitEmpty(deadline); left.ok()) left = empty;
  }
  return left;
}

}  // namespace pelton
