#include "backend/backend.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backend/route.h"
#include "comm/collectives/neighbor_communicator.h"
#include "comm/control/bind_address.h"
#include "comm/control/grpc_control.h"
#include "comm/control/host_identity.h"
#include "comm/control/key_value.h"
#include "core/actor/backoff.h"
#include "core/actor/promise.h"
#include "core/actor/spawn.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// In the job's key-value store: the number of the communicator that was opened last.
constexpr char kLastCommunicatorKey[] = "pelton/last_communicator";
constexpr size_t kRanksNamed = 16;  // a report stays one line
// How long the end waits for functions of a user's; the rounds that they belong to have ended.
constexpr absl::Duration kLongestWaitForPool = absl::Seconds(1);

std::string Here(const BackendOptions& options) {
  return absl::StrCat("rank ", options.rank.value(), " of job '", options.job, "'");
}

// 0 where there is none.
uint16_t PortOf(absl::string_view address) {
  uint32_t port = 0;
  const size_t colon = address.rfind(':');
  if (colon == address.npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) return 0;
  return port <= UINT16_MAX ? static_cast<uint16_t>(port) : 0;
}

// By which name this rank knows the coordinator that it serves at `address`: that by which the
// others reach it, which is the certificate's, where that is the name of a host; else none.
absl::StatusOr<std::string> ServerNameOf(const std::string& address) {
  ASSIGN_OR_RETURN(HostAndPort where, SplitAddress(address));
  return ResolveBindAddress(where.host).ok() ? "" : std::move(where.host);
}

// What a wait for the group's members is called in reports.
std::string OpeningOf(const Group& group) {
  std::vector<int32_t> ranks;
  for (size_t i = 0; i < group.members.size() && i < kRanksNamed; ++i) {
    ranks.push_back(group.members[i].value());
  }
  return absl::StrCat("opening a communicator of ranks ", absl::StrJoin(ranks, ", "),
                      group.members.size() > kRanksNamed ? ", ..." : "");
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

absl::StatusOr<std::unique_ptr<CoordinatorServer>> ServeCoordinatorAt(
    const std::string& address, const std::string& token, const TlsOptions& tls,
    absl::Duration heartbeat_timeout) {
  ASSIGN_OR_RETURN(HostAndPort where, SplitAddress(address));
  CoordinatorOptions options;
  if (!absl::SimpleAtoi(where.port, &options.port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address: '", address, "' is not host:port, with a number for the port"));
  }
  options.interface = std::move(where.host);
  options.token = token;
  options.tls = tls;
  options.heartbeat_timeout = heartbeat_timeout;
  ASSIGN_OR_RETURN(std::unique_ptr<CoordinatorServer> server, CoordinatorServer::Start(options));
  ClosePortInChildren(PortOf(server->address()));
  return server;
}

absl::StatusOr<std::unique_ptr<Backend>> Backend::Start(const BackendOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Backend> backend(new Backend(options));
  if (const char* const prefix = std::getenv("PELTON_TRACE"); prefix != nullptr && *prefix != 0) {
    backend->trace_ = std::make_unique<TraceFile>(prefix, options.rank);
  }
  const std::string joining = absl::StrCat("joining job '", options.job, "'");
  const CallName name(joining);
  if (absl::Status joined = backend->Join(); !joined.ok()) return Annotate(joined, Here(options));
  return backend;
}

Backend::~Backend() { (void)Stop(Clock::Real().Now() + limits::kStopTimeout); }

absl::Status Backend::Join() {
  const absl::Time deadline = Clock::Real().Now() + options_.join_timeout;
  if (IsLinkAddress(options_.coordinator_address)) {
    // A daemon has joined in this rank's name: what stands behind the seams lives there.
    ASSIGN_OR_RETURN(LinkedParts parts,
                     AttachToDaemon({PathOfLink(options_.coordinator_address), options_.job,
                                     options_.rank, options_.world_size},
                                    deadline));
    control_ = std::move(parts.control);
    transport_ = std::move(parts.transport);
    hosts_ = std::move(parts.hosts);
    host_warning_ = std::move(parts.host_warning);
    is_heir_ = parts.is_heir;
    mark_ = std::move(parts.mark);
    SetProcessesOnHost(2 * static_cast<int>(host_ranks().size()));  // a daemon for each
    StartSession();
    return absl::OkStatus();
  }
  std::string address = options_.coordinator_address;
  TlsOptions tls = options_.tls;
  if (options_.serves_coordinator) {
    ASSIGN_OR_RETURN(coordinator_, ServeCoordinatorAt(address, options_.token, options_.tls,
                                                      options_.heartbeat_timeout));
    if (tls.server_name.empty()) {
      ASSIGN_OR_RETURN(tls.server_name, ServerNameOf(address));
    }
    address = coordinator_->address();
  }
  ClosePortInChildren(PortOf(address));
  ASSIGN_OR_RETURN(control_, MakeGrpcControl({.address = address,
                                              .token = options_.token,
                                              .heartbeat_timeout = options_.heartbeat_timeout,
                                              .tls = tls}));
  JoinRequest request;
  request.job = options_.job;
  request.rank = options_.rank;
  request.world_size = options_.world_size;
  request.host = HostIdentity::OfThisProcess();
  absl::StrAppend(&request.host.boot_id, options_.host_label.empty() ? "" : "/",
                  options_.host_label);
  ASSIGN_OR_RETURN(membership_, control_->Join(request, deadline));
  RETURN_IF_ERROR(Connect(deadline));
  StartSession();
  return absl::OkStatus();
}

absl::Status Backend::Tell(TrainerMark mark, absl::Time deadline) {
  return mark_ == nullptr ? absl::OkStatus() : mark_(mark, deadline);
}

void Backend::StartSession() {
  executor_ = std::make_unique<ThreadExecutor>(ThreadExecutor::Options{.name = "pelton-session"});
  Session::Options session;
  session.here = Here(options_);
  session.control = control_.get();
  session.transport = transport_.get();
  session.note = &failure_;
  session.tell_patience = options_.heartbeat_timeout;
  session.turn_look_interval = Session::kTurnLookInterval;
  SpawnOptions options;
  options.name = "session";
  options.mailbox_capacity = SessionDoor::MailboxCapacity(world_size());
  session_ = Spawn<Session>(*executor_, std::move(options), std::move(session));
  door_ = std::make_unique<SessionDoor>(session_, world_size());
  control_->OnOrder([this](const Order& order) { Obey(order, door_.get()); });
}

// `door` is null where the session has ended, or is about to.
void Backend::Obey(const Order& order, SessionDoor* door) {
  const Rank culprit = order.culprit.value_or(rank());
  if (order.kind == Order::Kind::kPeerAbsent) {
    absences_.Begin(culprit, std::string(order.reason.message()));
  } else if (order.kind == Order::Kind::kPeerBack) {
    absences_.End(culprit);
  } else {
    // Nobody is awaited in a job that ends, nor one that has left, and none would come back to have
    // deadlines move on.
    order.kind == Order::Kind::kPeerLeft ? absences_.End(culprit) : absences_.EndAll();
    if (door != nullptr) door->Send(order);
  }
}

template <typename Question>
absl::Status Backend::AskSession(Question question) const {
  // A child has no thread that would answer.
  RETURN_IF_ERROR(CheckNotForkedChild());
  auto [promise, answer] = MakePromise<void>();
  question.reply = std::move(promise);
  // Without a deadline, because the session's turns wait for nothing, and a thread that closes a
  // communicator must not go on before the session has let go of it.
  absl::StatusOr<Permits<Session>> room =
      session_.WhenRoom(1, absl::InfiniteFuture()).Await(absl::InfiniteFuture());
  absl::Status status = room.ok() ? room->Send(std::move(question)) : room.status();
  if (status.ok()) status = std::move(answer).Await(absl::InfiniteFuture());
  if (status.ok() || session_.alive()) return status;
  RETURN_IF_ERROR(failure());
  return HasLeft();
}

absl::Status Backend::HasLeft() const {
  return absl::FailedPreconditionError(
      absl::StrCat(Here(options_), " has left the job; make a new backend to join one"));
}

absl::Status Backend::Connect(absl::Time deadline) {
  ASSIGN_OR_RETURN(FoundHosts found,
                   FindHosts({control_.get(), &membership_, rank(), options_.token, deadline}));
  hosts_ = std::move(found.map);
  host_warning_ = std::move(found.warning);
  // The ranks of a host share its cores: none may spin as if it had them alone.
  SetProcessesOnHost(static_cast<int>(host_ranks().size()));
  if (hosts_.is_one_host()) {
    transport_ = std::move(found.inside);
    return absl::OkStatus();
  }
  HierarchyOptions hierarchy;
  hierarchy.rank = rank();
  hierarchy.host_of = hosts_.host_of;
  hierarchy.inside = std::move(found.inside);
  ASSIGN_OR_RETURN(hierarchy.table, AgreeOnSchedules(deadline));
  ASSIGN_OR_RETURN(hierarchy.between, ConnectHosts(deadline));
  std::unique_ptr<HostsTransport> transport = MakeHierarchicalTransport(std::move(hierarchy));
  hosts_transport_ = transport.get();
  transport_ = std::move(transport);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Transport>> Backend::ConnectHosts(absl::Time deadline) {
  const absl::StatusOr<TransportRegistry::Entry> wire =
      TransportRegistry::Get().Find(options_.wire);
  if (!wire.ok()) {
    return absl::UnimplementedError(absl::StrCat(
        "the ranks are on several hosts, this one on that of rank ", hosts_.host_of[rank().value()],
        ", and this build has no wire between hosts: ", wire.status().message(),
        host_warning_.empty() ? "" : "; ", host_warning_));
  }
  TransportOptions options;
  options.rank = rank();
  options.world_size = world_size();
  options.job_token = options_.token;
  options.bootstrap = control_.get();
  options.deadline = deadline;
  options.interface = options_.interface;
  if (options.interface.empty()) {
    ASSIGN_OR_RETURN(options.interface, InterfaceTowards(options_.coordinator_address));
  }
  options.near = host_ranks();
  return wire->factory(options);
}

// The messages of one table's schedules match no other's.
absl::StatusOr<SelectionTable> Backend::AgreeOnSchedules(absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   control_->AllGather("schedules", options_.schedules, deadline));
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    return absl::InvalidArgumentError(

        absl::StrCat("schedules: the table of rank ", rank,
                     " is not that of rank 0; give all ranks the same one"));
  }
  absl::StatusOr<SelectionTable> table = SelectionTable::Parse(options_.schedules);
  if (!table.ok()) return Annotate(table.status(), "schedules");
  return table;
}

absl::StatusOr<Transport*> Backend::TransportOf(Device device, absl::Time deadline) {
  if (device.kind == DeviceKind::kHost) return transport_.get();
  std::unique_ptr<Transport>& gpu = gpus_[device.index];
  if (gpu != nullptr) return gpu.get();
  // Before the first connection: the peers could not go on with another process at its other end.
  RETURN_IF_ERROR(Tell(TrainerMark::kHasNoHeir, deadline));
  ASSIGN_OR_RETURN(const TransportRegistry::Entry nccl, TransportRegistry::Get().Find("nccl"));
  TransportOptions options;
  options.rank = rank();
  options.world_size = world_size();
  options.job_token = options_.token;
  options.deadline = deadline;
  options.host = transport_.get();
  options.device_index = device.index;
  ASSIGN_OR_RETURN(gpu, nccl.factory(options));
  return gpu.get();
}

absl::StatusOr<std::unique_ptr<WatchedCommunicator>> Backend::Open(const Group& group,
                                                                   Device device,
                                                                   const std::string& schedules) {
  RETURN_IF_ERROR(CheckGroup(group, world_size(), rank()));
  RETURN_IF_ERROR(AskSession(MayOpen{group, {}}));
  const std::string opening = OpeningOf(group);
  const CallName name(opening);
  absl::StatusOr<std::unique_ptr<WatchedCommunicator>> opened = OpenAmong(group, device, schedules);
  if (IsInterrupted(opened.status())) {
    // The others would wait for this rank until their join timeout.
    Report(AsAbort(Annotate(opened.status(), opening)));
  }
  return opened;
}

absl::StatusOr<std::unique_ptr<WatchedCommunicator>> Backend::OpenAmong(
    const Group& group, Device device, const std::string& schedules) {
  const absl::Time deadline = Clock::Real().Now() + options_.join_timeout;
  if (!opening_.Take(deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat(Here(options_), ": another thread has been opening a communicator for ",
                     absl::ToInt64Milliseconds(options_.join_timeout),
                     " ms; open communicators in the same order on all ranks"));
  }
  const TurnHolder holder(&opening_);
  ASSIGN_OR_RETURN(const CommunicatorId id, AgreeOnId(group, schedules, deadline));
  if (device.kind == DeviceKind::kHost) RETURN_IF_ERROR(UseSchedules(id, schedules));
  ASSIGN_OR_RETURN(Transport* const transport, TransportOf(device, deadline));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, transport->Open(id, group, deadline));
  const DeviceKind kind = device.kind;
  // Those of GPUs run neighbour operations by themselves.
  if (kind == DeviceKind::kHost) opened = MakeNeighborCommunicator(std::move(opened));
  auto watched =
      std::make_unique<WatchedCommunicator>(std::move(opened), [this, kind](Communicator* closing) {
        // A session that has ended touches nothing any more.
        (void)AskSession(Closed{{closing, kind, {}}, {}});
      });
  if (absl::Status entered = AskSession(Opened{{watched.get(), kind, group}, {}}); !entered.ok()) {
    watched->Abort(entered);
  }
  return watched;
}

// The first member draws the number. It travels by a gather among the members, not by a key of the
// store, so that nothing of it remains and the missing are named.
absl::StatusOr<CommunicatorId> Backend::AgreeOnId(const Group& group, const std::string& schedules,
                                                  absl::Time deadline) {
  AllGatherRequest request{"communicator", "", group.members};
  if (group.members[0] == rank()) {
    KeyValueStore store(control_.get());
    ASSIGN_OR_RETURN(const int64_t number, store.Add(kLastCommunicatorKey, 1, deadline));
    request.value = absl::StrCat(number);
  }
  absl::StrAppend(&request.value, "\n", schedules);
  absl::StatusOr<std::vector<std::string>> drawn = control_->AllGatherAmong(request, deadline);
  if (!drawn.ok()) return Annotate(drawn.status(), "opening a communicator");
  const auto end_of_number = [](const std::string& text) { return text.find('\n'); };
  const absl::string_view first = drawn->front();
  for (size_t i = 1; i < drawn->size(); ++i) {
    const std::string& other = (*drawn)[i];
    if (other.substr(end_of_number(other)) == first.substr(end_of_number(drawn->front()))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("schedules: the rows of rank ", group.members[i].value(),
                     " are not those of rank ", group.members[0].value()));
  }
  uint32_t number = 0;
  if (!absl::SimpleAtoi(first.substr(0, end_of_number(drawn->front())), &number)) {
    return absl::InternalError(absl::StrCat("rank ", group.members[0].value(),
                                            " drew no communicator's number: '", first, "'"));
  }
  return CommunicatorId(number);
}

absl::Status Backend::UseSchedules(CommunicatorId id, const std::string& schedules) {
  if (schedules.empty()) return absl::OkStatus();
  absl::StatusOr<SelectionTable> table =
      SelectionTable::Parse(absl::StrCat(schedules, "\n", options_.schedules));
  if (!table.ok()) return Annotate(table.status(), "schedules");
  if (hosts_transport_ != nullptr) hosts_transport_->UseTable(id, *std::move(table));
  return absl::OkStatus();
}

absl::Status Backend::WhyNotWith(const Group& group) const {
  return AskSession(MayOpen{group, {}});
}

void Backend::Share(const Region& region) { (void)AskSession(ShareRegion{{&region}, {}}); }

int64_t Backend::Show(ModelLook look) {
  const int64_t number = ++last_look_;
  looks_.Add({number, std::move(look)});
  return number;
}

void Backend::Hide(int64_t number) {
  looks_.RemoveIf([number](const Look& shown) { return shown.number == number; });
}

std::vector<ModelSight> Backend::LookAtModels(absl::Time deadline) const {
  std::vector<ModelSight> sights;
  looks_.ForEach([&](const Look& shown) { sights.push_back(shown.look(deadline)); });
  return sights;
}

// Only notes the failure, because neither an event handler nor the code that has failed may block;
// the session acts on it.
void Backend::Report(const absl::Status& reason) {
  if (door_ != nullptr) door_->Report(reason);
}

absl::Status Backend::OnPoolForBlocking(absl::FunctionRef<void(Executor& pool)> spawn) {
  RETURN_IF_ERROR(CheckNotForkedChild());
  if (!making_pool_.Take(absl::InfiniteFuture())) return absl::InternalError("no turn");
  const TurnHolder holder(&making_pool_);
  if (stopped_) return HasLeft();
  if (pool_ == nullptr) {
    pool_ = std::make_unique<PoolExecutor>(
        PoolExecutor::Options{.name = "pelton-calls", .turns_may_block = true});
  }
  spawn(*pool_);  // in this turn, because a pool on which nothing lives may end at any time
  return absl::OkStatus();
}

void Backend::EndPool(absl::Time deadline) {
  if (!making_pool_.Take(absl::InfiniteFuture())) return;
  const TurnHolder holder(&making_pool_);
  if (pool_ == nullptr) return;
  const absl::Status ended = PoolExecutor::EndOrLeave(std::move(pool_), deadline);
  if (ended.ok()) return;
  Log(LogLevel::kWarning,
      absl::StrCat(Here(options_),
                   ": leaves the job while a user's function has not returned; its ",
                   "thread stays until the process ends: ", ended.message()));
}

absl::Status Backend::Stop(absl::Time deadline) {
  if (stopped_.exchange(true)) return absl::OkStatus();
  // The session first, so that a failure which it has yet to tell arrives before our goodbye. From
  // now on no order comes to it, and a rank that leaves is no failure any more.
  if (door_ != nullptr) {
    control_->OnOrder([this](const Order& order) { Obey(order, nullptr); });
    door_->Close();
  }
  absl::Status left = executor_ != nullptr ? executor_->Shutdown(deadline) : absl::OkStatus();
  if (control_ != nullptr) {
    if (absl::Status goodbye = control_->Leave(deadline); left.ok()) left = goodbye;
  }
  if (transport_ != nullptr) transport_->SayGoodbye();
  if (coordinator_ != nullptr) {
    // The other ranks leave by a call to the coordinator as well. It is served until they have done
    // so, or until `deadline`; a rank that leaves later finds its coordinator lost.
    if (absl::Status empty = coordinator_->AwaitEmpty(deadline); left.ok()) left = empty;
  }
  // Last: nobody else waits because a function of this rank's does not return.
  EndPool(std::min(deadline, Clock::Real().Now() + kLongestWaitForPool));
  return left;
}

}  // namespace pelton
