#include <poll.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/call_desk.h"
#include "backend/link/link_server.h"
#include "comm/control/wire.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr int kLookMs = 10;
// The connections of a process that was killed close within this time.
constexpr absl::Duration kClosePatience = absl::Seconds(10);

}  // namespace

void LinkServer::BeginSetUp(const TrainerSeat::Trainer& trainer) {
  set_up_is_over_ = trainer.is_heir;
  MutexLock lock(&mutex_);
  set_up_.Begin(trainer.attachment, trainer.is_heir);
}

proto::LinkReply LinkServer::AnswerFor(const TrainerSeat::Trainer& trainer,
                                       const proto::LinkCall& call) {
  if (call.request_case() == proto::LinkCall::kMark) {
    if (seat_.Find(trainer.attachment).ok()) TakeMark(call.mark());
    return {};
  }
  const bool is_logged = trainer_grace_ > absl::ZeroDuration() && !call.has_report();
  if (is_logged) {
    MutexLock lock(&mutex_);
    if (std::optional<proto::LinkReply> reply = set_up_.Replay(call)) return *std::move(reply);
    set_up_.Makes(trainer.attachment);
  }
  proto::LinkReply reply = AnswerCall(backend_, seat_, trainer, call);
  if (is_logged) {
    MutexLock lock(&mutex_);
    set_up_.Made(trainer.attachment, call, reply);
  }
  return reply;
}

void LinkServer::TakeMark(proto::LinkMark mark) {
  MutexLock lock(&mutex_);
  if (mark == proto::HAS_NO_HEIR) {
    set_up_is_over_ = true;  // nobody needs what operations bring from now on
    return set_up_.Spoil();
  }
  set_up_is_over_ = true;
  set_up_.End();
  // All that keep something for an heir are told the same.
  const auto tell_all = [this](auto tell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    tell(set_up_);
    for (const auto& [number, served] : communicators_) {
      if (served != nullptr) tell(*served);
    }
  };
  switch (mark) {
    case proto::SNAPSHOT_IS_KEPT:
      ++snapshots_;
      return tell_all([](auto& keeper) { keeper.Keep(); });
    case proto::SNAPSHOT_BEGINS:
      return tell_all([](auto& keeper) { keeper.BeginKeep(); });
    case proto::SNAPSHOT_IS_THROUGH:
      ++snapshots_;
      return tell_all([](auto& keeper) { keeper.KeepBegun(); });
    default:
      return;
  }
}

void LinkServer::AnswerMissing(const proto::LinkMissing& question, proto::LinkReply* reply) const {
  MutexLock lock(&mutex_);  // it must not be closed meanwhile
  const auto found = communicators_.find(question.communicator());
  if (found == communicators_.end() || found->second == nullptr) return;
  for (const Rank rank : found->second->MissingAfter(question.launches())) {
    reply->add_missing(rank.value());
  }
}

// By a gather of their trainers first: it ends at the trainer's deadline, names who is missing, and
// keeps no other one from opening.
absl::StatusOr<std::unique_ptr<WatchedCommunicator>> LinkServer::OpenFor(
    const TrainerSeat::Trainer& trainer, const proto::LinkHello& hello) {
  const Group group = Group::Of(hello.members(), Generation(hello.generation()));
  RETURN_IF_ERROR(CheckGroup(group, backend_.world_size(), backend_.rank()));
  const absl::Time deadline = wire::DeadlineFromProto(Clock::Real().Now(), hello.timeout_us());
  const AllGatherRequest meeting{absl::StrCat(TrainerSeat::PrefixOf(trainer.epoch), "open"), "",
                                 group.members};
  RETURN_IF_ERROR(Annotate(backend_.control().AllGatherAmong(meeting, deadline).status(),
                           "opening a communicator"));
  return backend_.Open(group);
}

// That of the trainer in whose place this one comes, or a new one.
absl::StatusOr<ServedCommunicator::Line> LinkServer::LineFor(const TrainerSeat::Trainer& trainer,
                                                             const proto::LinkHello& hello) {
  if (trainer.is_heir) {
    MutexLock lock(&mutex_);
    for (auto left = left_.begin(); left != left_.end(); ++left) {
      const bool is_same =
          left->members == std::vector<int32_t>(hello.members().begin(), hello.members().end()) &&
          left->generation == hello.generation();
      if (!is_same) continue;
      ServedCommunicator::Line line = std::move(left->line);
      line.replays = true;
      left_.erase(left);
      return line;
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<WatchedCommunicator> opened, OpenFor(trainer, hello));
  if (set_up_is_over_) {
    // Its peers have it open already: they would not come to open it with an heir once more.
    MutexLock lock(&mutex_);
    set_up_.Spoil();
  }
  ServedCommunicator::Line line;
  line.communicator = std::move(opened);
  line.is_set_up = &set_up_is_over_;
  if (trainer_grace_ > absl::ZeroDuration()) line.log = std::make_shared<OperationLog>();
  return line;
}

void LinkServer::ServeCommunicator(const proto::LinkHello& hello,
                                   const std::shared_ptr<LinkSocket>& socket) {
  const absl::StatusOr<TrainerSeat::Trainer> trainer = seat_.Find(hello.attachment());
  if (!trainer.ok()) return Welcome(*socket, {}, trainer.status());
  absl::StatusOr<ServedCommunicator::Line> line = LineFor(*trainer, hello);
  if (!line.ok()) return Welcome(*socket, {}, line.status());
  proto::LinkWelcome welcome;
  {
    MutexLock lock(&mutex_);
    welcome.set_communicator(++last_communicator_);
  }
  if (line->number == 0) line->number = welcome.communicator();
  welcome.set_piece_bytes(ServedCommunicator::PieceBytesOf(*line));
  auto served = std::make_unique<ServedCommunicator>(*line, socket);
  {
    MutexLock lock(&mutex_);
    communicators_[welcome.communicator()] = served.get();
  }
  Welcome(*socket, welcome, absl::OkStatus());
  const absl::Status ended = served->Serve(GoneText(*trainer));
  if (!ended.ok() && !absl::IsUnavailable(ended)) {
    Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: a communicator of pid ", trainer->pid,
                                         " was ended: ", ended.message()));
  }
  {
    MutexLock lock(&mutex_);
    communicators_[welcome.communicator()] = nullptr;
  }
  const bool is_left = served->is_left();
  served.reset();  // before an heir has the communicator
  MutexLock lock(&mutex_);
  if (is_left) {
    LeftCommunicator left{{hello.members().begin(), hello.members().end()},
                          hello.generation(),
                          line->number,
                          *std::move(line)};
    const auto is_later = [&left](const LeftCommunicator& other) {
      return other.number > left.number;
    };
    left_.insert(std::find_if(left_.begin(), left_.end(), is_later), std::move(left));
  } else if (ended.ok()) {
    set_up_.Spoil();
  } else {
    broken_ = trainer->attachment;
  }
  communicators_.erase(welcome.communicator());
}

// Before a trainer's first snapshot its peers wait for it to restore theirs together, which an heir
// does not do. A trainer that has a model alone, and no communicator, keeps its snapshots itself.
// A model that it has let go its peers have let go, too, and make no other one with an heir.
// A model that is being made yet may have been answered for already; one that its peers have not
// come to stays in the making. With a snapshot that is too old an heir would only fail.
bool LinkServer::MayHaveHeir(const TrainerSeat::Trainer& trainer) const {
  if (trainer_grace_ <= absl::ZeroDuration()) return false;
  const absl::Time patience = Clock::Real().Now() + kClosePatience;
  while (true) {
    {
      MutexLock lock(&mutex_);
      if (communicators_.empty() && !shelf_.IsServing(trainer.attachment)) {
        const bool has_begun = set_up_.has_kept() || (left_.empty() && shelf_.HasAny());
        return broken_ != trainer.attachment && set_up_.is_whole() && has_begun &&
               !shelf_.HasLetAllGo(trainer.attachment) && seat_.ExpectsHeir(trainer) &&
               !(set_up_.has_kept() && shelf_.HasOutrunSnapshot());
      }
    }
    if (Clock::Real().Now() >= patience) return false;
    poll(nullptr, 0, kLookMs);
  }
}

absl::StatusOr<std::unique_ptr<ModelServer>> LinkServer::TakeLeft(uint64_t attachment,
                                                                  const std::string& name,
                                                                  absl::Time deadline) {
  while (true) {
    {
      MutexLock lock(&mutex_);
      absl::StatusOr<std::unique_ptr<ModelServer>> left = shelf_.Take(attachment, name);
      const bool may_come = absl::IsUnavailable(left.status()) && Clock::Real().Now() < deadline;
      if (!may_come) return left;
    }
    poll(nullptr, 0, kLookMs);
  }
}

void LinkServer::ClearLeft(const absl::Status& reason) {
  std::list<std::unique_ptr<ModelServer>> models;
  std::list<LeftCommunicator> communicators;
  {
    MutexLock lock(&mutex_);
    models = shelf_.TakeAll();
    communicators.swap(left_);
  }
  for (const std::unique_ptr<ModelServer>& server : models) server->GiveUp(reason);
  for (const LeftCommunicator& left : communicators) left.line.communicator->Abort(reason);
}

void LinkServer::AwaitHeir(const TrainerSeat::Trainer& gone) {
  seat_.Vacate(gone, Clock::Real().Now() + trainer_grace_);
  const auto gives_up = [this] { return stops_.load() || !backend_.failure().ok(); };
  const absl::Status reason = seat_.AwaitHeir(gone, gives_up);
  if (reason.ok()) return;
  Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: ", reason.message()));
  ClearLeft(reason);
  // Also where this daemon ends, because all others have been told to wait.
  seat_.TellOfEnd(gone, reason);
}

}  // namespace pelton
