#include "backend/link/link_server.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/call_desk.h"
#include "backend/link/link_client.h"
#include "backend/link/model_server.h"
#include "backend/link/sight.h"
#include "comm/control/wire.h"
#include "comm/transport/shm/socket.h"
#include "core/actor/backoff.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr absl::Duration kReplyPatience = absl::Seconds(60);
constexpr absl::Duration kEndPatience = absl::Seconds(2);
constexpr int kLookMs = 10;
constexpr absl::Duration kRetryInterval = absl::Milliseconds(10);
// What has ended is cleared away then, or when the next stranger comes.
constexpr absl::Duration kAcceptSlice = absl::Seconds(5);
// For a model that does not answer, because a stage computes.
constexpr absl::Duration kLookPatience = absl::Seconds(1);

absl::Status Differs(absl::string_view field, const std::string& theirs, const std::string& ours) {
  return absl::FailedPreconditionError(absl::StrCat(field, ": the trainer's is '", theirs,
                                                    "', this daemon's is '", ours,
                                                    "'; attach to the daemon of the same ", field));
}

// Every process that may connect may ask these, of any job.
bool IsOfTools(proto::LinkHello::Purpose purpose) {
  return purpose == proto::LinkHello::STATUS || purpose == proto::LinkHello::STOP ||
         purpose == proto::LinkHello::NO_HEIR;
}

// Of what was under way at `first`, what still is; "": nothing.
std::string LeftOf(const proto::LinkStatus& first, const proto::LinkStatus& now) {
  for (const proto::ModelSight& before : first.models()) {
    if (before.unknown().empty() && !before.under_way()) continue;
    for (const proto::ModelSight& model : now.models()) {
      if (model.name() != before.name()) continue;
      const bool is_same = model.round() == before.round() && model.under_way();
      if (is_same || !model.unknown().empty()) return TextOf(model);
    }
  }
  if (first.operations() == 0 || now.operations() == 0) return "";
  return absl::StrCat(now.operations(), " operations are in flight");
}

}  // namespace

std::string LinkServer::GoneText(const TrainerSeat::Trainer& trainer) const {
  return absl::StrCat("rank ", backend_.rank().value(), "'s trainer (pid ", trainer.pid,
                      ") is gone; its pelton-daemon lives on, and the trainers of all ranks may "
                      "attach anew");
}

absl::StatusOr<Descriptor> LinkServer::Listen(const std::string& path) {
  if (LinkSocket::Connect(path, Clock::Real().Now() + absl::Seconds(1)).ok()) {
    return absl::AlreadyExistsError(
        absl::StrCat("another daemon listens at ", path, "; stop it, or choose another socket"));
  }
  unlink(path.c_str());  // of one that was killed
  return LinkSocket::Listen(path);
}

std::unique_ptr<LinkServer> LinkServer::Start(Backend* backend, const std::string& path,
                                              Descriptor listener, absl::Duration trainer_grace) {
  return std::unique_ptr<LinkServer>(
      new LinkServer(backend, path, std::move(listener), trainer_grace));
}

LinkServer::LinkServer(Backend* backend, std::string path, Descriptor listener,
                       absl::Duration trainer_grace)
    : backend_(*backend),
      path_(std::move(path)),
      listener_(std::move(listener)),
      trainer_grace_(trainer_grace),
      seat_(backend) {
  acceptor_.Start([this](std::vector<pollfd>& entries) { return Enter(entries); },
                  [this](const std::vector<pollfd>&) { Accept(); });
  // A trainer beside each daemon: neither may spin as if the cores were the daemons' alone.
  SetProcessesOnHost(2 * static_cast<int>(backend_.host_ranks().size()));
}

LinkServer::~LinkServer() {
  stops_ = true;
  acceptor_.Stop();
  unlink(path_.c_str());
  const absl::Status failure = backend_.failure();
  // Before the connections: to a round that is under way their end must not look like the
  // trainer's.
  own_end_.Give(!failure.ok() ? failure
                              : absl::UnavailableError(absl::StrCat(
                                    "the pelton-daemon of rank ", backend_.rank().value(), " (pid ",
                                    getpid(), ") has ended in good order")));
  const absl::Time patience = Clock::Real().Now() + kEndPatience;
  bool has_some = true;
  while (has_some && Clock::Real().Now() < patience) {
    has_some = ShutDownAll();
    if (has_some) poll(nullptr, 0, kLookMs);
  }
  ClearLeft(own_end_.Get());
  // Ends the calls that still wait at the coordinator.
  (void)backend_.Stop(Clock::Real().Now() + limits::kStopTimeout);
  std::list<Connection> left;
  {
    MutexLock lock(&mutex_);
    left.swap(connections_);
  }
  for (Connection& connection : left) connection.thread.join();
  ClearLeft(own_end_.Get());  // what has come meanwhile
}

// Whether one still has a thread.
bool LinkServer::ShutDownAll() {
  bool has_some = false;
  MutexLock lock(&mutex_);
  for (Connection& connection : connections_) {
    connection.socket->Shutdown();
    has_some |= !connection.is_over;
  }
  return has_some;
}

absl::Time LinkServer::Enter(std::vector<pollfd>& entries) {
  entries.push_back({lacks_descriptors_ ? -1 : listener_.get(), POLLIN, 0});
  return Clock::Real().Now() + (lacks_descriptors_ ? kRetryInterval : kAcceptSlice);
}

void LinkServer::Accept() {
  absl::StatusOr<Descriptor> accepted = shm::Accept(listener_.get(), absl::InfinitePast());
  // Those of others' connections become free.
  lacks_descriptors_ = !accepted.ok() && !absl::IsDeadlineExceeded(accepted.status());
  if (lacks_descriptors_) {
    Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: ", accepted.status().ToString()));
  }
  if (accepted.ok()) Serve(*std::move(accepted));
  Reap();
}

void LinkServer::Serve(Descriptor accepted) {
  auto socket = std::make_shared<LinkSocket>(std::move(accepted));
  MutexLock lock(&mutex_);
  if (connections_.size() >= kMostConnections) {
    Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: refused a connection, because ",
                                         kMostConnections, " are open"));
    return;
  }
  Connection& connection = connections_.emplace_back();
  connection.socket = socket;
  connection.thread = std::thread([this, &connection, socket = std::move(socket)] {
    ServeConnection(socket);
    socket->Shutdown();
    connection.is_over = true;
  });
}

void LinkServer::Reap() {
  std::list<Connection> over;
  {
    MutexLock lock(&mutex_);
    for (auto at = connections_.begin(); at != connections_.end();) {
      const auto next = std::next(at);
      if (at->is_over) over.splice(over.end(), connections_, at);
      at = next;
    }
  }
  for (Connection& connection : over) connection.thread.join();
}

absl::Status LinkServer::CheckHello(const LinkSocket& socket, const proto::LinkHello& hello) const {
  ASSIGN_OR_RETURN(const shm::Credentials peer, shm::PeerOf(socket.descriptor()));
  if (peer.uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("this daemon serves user ", geteuid(),
                                                    ", and the connection is of user ", peer.uid));
  }
  if (hello.version() != kLinkProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("version: the trainer speaks ", hello.version(), ", this daemon ",
                     kLinkProtocolVersion, "; start both from the same installation"));
  }
  if (IsOfTools(hello.purpose())) return absl::OkStatus();
  const BackendOptions& options = backend_.options();
  if (hello.job() != options.job) return Differs("job", hello.job(), options.job);
  if (hello.rank() != options.rank.value()) {
    return Differs("rank", absl::StrCat(hello.rank()), absl::StrCat(options.rank.value()));
  }
  if (hello.world_size() != options.world_size.value()) {
    return Differs("world size", absl::StrCat(hello.world_size()),
                   absl::StrCat(options.world_size.value()));
  }
  return absl::OkStatus();
}

void LinkServer::Welcome(LinkSocket& socket, proto::LinkWelcome welcome,
                         const absl::Status& status) const {
  welcome.set_code(static_cast<int32_t>(status.code()));
  welcome.set_message(std::string(status.message()));
  welcome.set_daemon_pid(getpid());
  (void)socket.Send(welcome, Clock::Real().Now() + kHelloPatience);
}

void LinkServer::ServeConnection(const std::shared_ptr<LinkSocket>& socket) {
  proto::LinkHello hello;
  absl::Status met = socket->Receive(hello, Clock::Real().Now() + kHelloPatience);
  if (met.ok()) met = CheckHello(*socket, hello);
  if (!met.ok()) {
    if (absl::IsUnavailable(met)) return;  // nobody is there to be told
    Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: refused: ", met.message()));
    return Welcome(*socket, {}, met);
  }
  switch (hello.purpose()) {
    case proto::LinkHello::ATTACH:
      return ServeTrainer(hello, socket);
    case proto::LinkHello::CALL:
      return ServeCalls(hello, *socket);
    case proto::LinkHello::COMMUNICATOR:
      return ServeCommunicator(hello, socket);
    case proto::LinkHello::ROUNDS:
      return ServeModel(hello, socket);
    case proto::LinkHello::STOP:
      stop_requested_ = true;
      return Welcome(*socket, {}, absl::OkStatus());
    case proto::LinkHello::NO_HEIR:
      seat_.ExpectNoHeir();
      return Welcome(*socket, {}, absl::OkStatus());
    case proto::LinkHello::STATUS:
      Welcome(*socket, {}, absl::OkStatus());
      (void)socket->Send(Status(), Clock::Real().Now() + kHelloPatience);
      return;
    default:
      return Welcome(
          *socket, {},
          absl::InvalidArgumentError(absl::StrCat("purpose: ", static_cast<int>(hello.purpose()),
                                                  " is not known to this daemon; start the trainer "
                                                  "and the daemon from one installation")));
  }
}

void LinkServer::ServeTrainer(const proto::LinkHello& hello,
                              const std::shared_ptr<LinkSocket>& socket) {
  const absl::StatusOr<TrainerSeat::Trainer> trainer = seat_.Attach(
      hello.pid(), socket, wire::DeadlineFromProto(Clock::Real().Now(), hello.timeout_us()));
  proto::LinkWelcome welcome;
  if (!trainer.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat("pelton-daemon: refused pid ", hello.pid(), ": ", trainer.status().message()));
    return Welcome(*socket, welcome, trainer.status());
  }
  welcome.set_attachment(trainer->attachment);
  welcome.set_is_heir(trainer->is_heir);
  if (!trainer->is_heir) ClearLeft(absl::AbortedError("all trainers have attached anew"));
  BeginSetUp(*trainer);
  for (const int32_t host : backend_.hosts().host_of) welcome.add_host_of(host);
  welcome.set_host_warning(backend_.host_warning());
  round_ = 0;  // an earlier trainer's
  Welcome(*socket, welcome, absl::OkStatus());
  seat_.Watch(*trainer);
  Log(LogLevel::kInfo, absl::StrCat("pelton-daemon: pid ", hello.pid(), " has attached"));
  const absl::Status ended = ReadNotices(*socket);
  const bool has_left = absl::IsCancelled(ended);
  const std::string gone = GoneText(*trainer);
  if (!has_left && !stops_ && MayHaveHeir(*trainer) && !seat_.HasLostPeer(*trainer)) {
    return AwaitHeir(*trainer);
  }
  Log(has_left ? LogLevel::kInfo : LogLevel::kWarning,
      has_left ? absl::StrCat("pelton-daemon: pid ", hello.pid(), " has left") : gone);
  // Where this daemon ends, the daemons of the others see that by themselves.
  ClearLeft(absl::UnavailableError(gone));
  if (!stops_)
    seat_.TellOfEnd(*trainer, has_left ? absl::OkStatus() : absl::UnavailableError(gone));
  seat_.Detach(*trainer);
}

// Errors: Cancelled: it left in good order; else how it ended.
absl::Status LinkServer::ReadNotices(LinkSocket& socket) {
  while (true) {
    proto::LinkNotice notice;
    RETURN_IF_ERROR(socket.Receive(notice, absl::InfiniteFuture()));
    if (notice.leaves()) return absl::CancelledError("left");
    if (notice.round() == 0) continue;
    round_ = notice.round();
    backend_.control().SetRound(Round(notice.round()));
  }
}

void LinkServer::ServeCalls(const proto::LinkHello& hello, LinkSocket& socket) {
  const absl::StatusOr<TrainerSeat::Trainer> trainer = seat_.Find(hello.attachment());
  Welcome(socket, {}, trainer.status());
  if (!trainer.ok()) return;
  while (true) {
    proto::LinkCall call;
    if (!socket.Receive(call, absl::InfiniteFuture()).ok()) return;
    proto::LinkReply reply;
    if (call.has_missing()) {
      AnswerMissing(call.missing(), &reply);
    } else {
      reply = AnswerFor(*trainer, call);
    }
    if (!socket.Send(reply, Clock::Real().Now() + kReplyPatience).ok()) return;
  }
}

// What becomes of a failure the trainer decides: its backend tells the trainers of the other ranks,
// and this daemon lives on.
void LinkServer::ServeModel(const proto::LinkHello& hello,
                            const std::shared_ptr<LinkSocket>& socket) {
  const absl::StatusOr<TrainerSeat::Trainer> trainer = seat_.Find(hello.attachment());
  Welcome(*socket, {}, trainer.status());
  if (!trainer.ok()) return;
  ModelServerOptions options;
  options.socket = socket;
  options.attachment = hello.attachment();
  options.meet = [this, epoch = trainer->epoch](const Group& group, absl::Time deadline) {
    const AllGatherRequest meeting{absl::StrCat(TrainerSeat::PrefixOf(epoch), "model"), "",
                                   group.members};
    return Annotate(backend_.control().AllGatherAmong(meeting, deadline).status(),
                    "making a model");
  };
  options.on_failure = [](const absl::Status& reason) {
    Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: ", reason.message()));
  };
  options.own_end = [this] { return own_end_.Get(); };
  options.keeps_progress = trainer_grace_ > absl::ZeroDuration();
  options.snapshots = &snapshots_;
  if (trainer->is_heir) {
    options.find_left = [this, attachment = trainer->attachment](const std::string& name,
                                                                 absl::Time deadline) {
      return TakeLeft(attachment, name, deadline);
    };
    options.put_back = [this](std::unique_ptr<ModelServer> left) {
      MutexLock lock(&mutex_);
      shelf_.PutBack(std::move(left));
    };
  }
  const auto on_shelf = [this](const auto& does) {
    MutexLock lock(&mutex_);
    does(shelf_);
  };
  on_shelf([&](ModelShelf& shelf) { shelf.Serves(trainer->attachment); });
  absl::StatusOr<std::unique_ptr<ModelServer>> server =
      ModelServer::Serve(backend_, std::move(options));
  if (!server.ok()) {
    on_shelf([&](ModelShelf& shelf) { shelf.HasServed(trainer->attachment, "", nullptr); });
    return Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: a model of pid ", trainer->pid,
                                                " was not made: ", server.status().message()));
  }
  const std::string name = (*server)->name();
  on_shelf([&](ModelShelf& shelf) { shelf.HasMade(name); });
  (*server)->AwaitEnd();
  // One that nobody may have ends here, and not with the lock.
  std::unique_ptr<ModelServer> left = (*server)->is_left() ? *std::move(server) : nullptr;
  on_shelf([&](ModelShelf& shelf) { shelf.HasServed(trainer->attachment, name, std::move(left)); });
}

absl::Status LinkServer::AwaitStepEnd(absl::Time deadline) const {
  const proto::LinkStatus first = Status();
  while (true) {
    const std::string left = LeftOf(first, Status());
    if (left.empty()) return absl::OkStatus();
    if (Clock::Real().Now() >= deadline) return absl::DeadlineExceededError(left);
    poll(nullptr, 0, kLookMs);
  }
}

void LinkServer::EndTrainers(const absl::Status& step, absl::Time deadline) {
  const TrainerSeat::Trainer trainer = seat_.Current();
  if (trainer.pid == 0) return;
  const absl::Status reason = absl::UnavailableError(absl::StrCat(
      "the pelton-daemon of rank ", backend_.rank().value(), " (pid ", getpid(),
      ") was told to end", step.ok() ? "" : ", and the step did not end before: ", step.message()));
  own_end_.Give(reason);
  if (!step.ok()) (void)seat_.Report(trainer, reason, deadline);
  seat_.TellOwn(trainer, reason);
  while (!step.ok() && seat_.Current().attachment == trainer.attachment &&
         Clock::Real().Now() < deadline) {
    poll(nullptr, 0, kLookMs);
  }
}

proto::LinkStatus LinkServer::Status() const {
  proto::LinkStatus status = SightOf(backend_, Clock::Real().Now() + kLookPatience);
  status.set_daemon_pid(getpid());
  const TrainerSeat::Trainer trainer = seat_.Current();
  status.set_trainer_pid(trainer.pid);
  status.set_trainer_is_welcomed(trainer.epoch != 0);
  status.set_awaits_heir(seat_.awaits_heir());
  status.set_attachments(seat_.attachments());
  // Models whose algorithm is in no registry run in the trainer, which tells of them itself.
  status.set_round(std::max(status.round(), round_.load()));
  MutexLock lock(&mutex_);
  status.set_communicators(static_cast<uint32_t>(communicators_.size()));
  size_t operations = 0;
  for (const auto& [number, served] : communicators_) {
    operations += served == nullptr ? 0 : served->in_flight();
  }
  status.set_operations(static_cast<uint32_t>(operations));
  return status;
}

}  // namespace pelton
