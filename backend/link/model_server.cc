#include "backend/link/model_server.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/rounds_messages.h"
#include "backend/link/rounds_progress.h"
#include "backend/link/rounds_server.h"
#include "core/actor/wait_hook.h"
#include "core/base/limits.h"
#include "core/base/status.h"
#include "proto/link_rounds.pb.h"

namespace pelton {
namespace {

absl::StatusOr<link::RoundsQuestion> ReceiveQuestion(LinkSocket& socket) {
  link::RoundsQuestion question;
  RETURN_IF_ERROR(socket.Receive(question, WaitClock().Now() + limits::kStopTimeout));
  if (question.has_make()) return question;
  return absl::InvalidArgumentError(absl::StrCat("the trainer asks question ",
                                                 static_cast<int>(question.what_case()),
                                                 " before it has asked for a model"));
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const ModelServerOptions& options,
                                                 const link::RoundsQuestion& question) {
  ASSIGN_OR_RETURN(ModelQuestion asked, FromMessage(question.make()));
  asked.options.on_failure = options.on_failure;
  if (options.meet != nullptr) {
    const absl::Time deadline = WaitClock().Now() + DurationOf(question.timeout_ns());
    RETURN_IF_ERROR(options.meet(asked.options.group, deadline));
  }
  return options.make(asked.options, std::move(asked.tensors));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Serve(Backend& backend,
                                                                ModelServerOptions options) {
  options.rank = backend.rank();
  options.make = [&backend](const ModelOptions& model, std::vector<TensorSpec> tensors) {
    return Model::Create(backend, model, std::move(tensors));
  };
  return Serve(std::move(options));
}

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Serve(ModelServerOptions options) {
  const std::shared_ptr<LinkSocket> socket = options.socket;
  absl::StatusOr<std::unique_ptr<ModelServer>> server = Answer(options);
  if (server.ok()) return server;
  link::RoundsAnswer answer;
  *answer.mutable_status() = ToMessage(server.status());
  // A trainer that is gone needs no answer.
  socket->Send(answer, WaitClock().Now() + limits::kStopTimeout).IgnoreError();
  return server;
}

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Answer(ModelServerOptions& options) {
  ASSIGN_OR_RETURN(const link::RoundsQuestion question, ReceiveQuestion(*options.socket));
  if (options.find_left != nullptr) {
    const absl::Time deadline = WaitClock().Now() + DurationOf(question.timeout_ns());
    ASSIGN_OR_RETURN(std::unique_ptr<ModelServer> left,
                     options.find_left(question.make().name(), deadline));
    if (left != nullptr) {
      const absl::Status goes_on = left->GoOn(options, question);
      if (goes_on.ok()) return left;
      options.put_back(std::move(left));
      return goes_on;
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, MakeModel(options, question));
  std::unique_ptr<ModelServer> server(new ModelServer(std::move(model), question.make()));
  server->RenewRegions();
  RETURN_IF_ERROR(server->Begin(options, question.make()));
  return server;
}

absl::Status ModelServer::Begin(ModelServerOptions& options, const link::MakeModel& question) {
  RoundsServerOptions rounds;
  rounds.socket = options.socket;
  rounds.model_name = name();
  rounds.rank = options.rank;
  rounds.rank_in_group = model_->rank();
  rounds.attachment = options.attachment;
  rounds.sent_bytes = [raw = model_.get()] { return raw->sent_bytes(); };
  rounds.regions = regions_.get();
  rounds.own_end = std::move(options.own_end);
  rounds.keeps_progress = options.keeps_progress;
  rounds.snapshots = options.snapshots;
  rounds.goes_on_with = Round(question.first_round());
  if (progress_ != nullptr) rounds.progress = *progress_;
  ASSIGN_OR_RETURN(server_, RoundsServer::Start(model_->rounds(), std::move(rounds)));
  progress_.reset();
  return absl::OkStatus();
}

absl::Status ModelServer::GoOn(ModelServerOptions& options, const link::RoundsQuestion& question) {
  RETURN_IF_ERROR(CheckSame(question.make()));
  if (progress_ == nullptr) {
    const absl::Time deadline = WaitClock().Now() + DurationOf(question.timeout_ns());
    ASSIGN_OR_RETURN(RoundsProgress progress, server_->TakeProgress(deadline));
    progress_ = std::make_unique<RoundsProgress>(std::move(progress));
    server_.reset();
    RenewRegions();  // nothing is at the former trainer's memory any more
  }
  return Begin(options, question.make());
}

// The round that the trainer goes on with is not the model's.
absl::Status ModelServer::CheckSame(const link::MakeModel& other) const {
  link::MakeModel theirs = other;
  theirs.set_first_round(question_->first_round());
  google::protobuf::util::MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  if (differencer.Compare(*question_, theirs)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "model '", name(), "': the trainer comes in the place of one whose model differs: ",
      difference.substr(0, difference.find('\n')),
      "; start the same script, or the trainers of all ranks"));
}

const std::string& ModelServer::name() const { return question_->name(); }

bool ModelServer::is_left() const { return progress_ != nullptr || server_->is_left(); }

bool ModelServer::snapshot_is_behind() const {
  return server_ != nullptr && server_->snapshot_is_behind();
}

void ModelServer::GiveUp(const absl::Status& reason) {
  if (server_ != nullptr) return server_->GiveUp(reason);
  model_->rounds().Abort(reason);
}

ModelServer::ModelServer(std::unique_ptr<Model> model, const link::MakeModel& question)
    : question_(std::make_unique<const link::MakeModel>(question)), model_(std::move(model)) {}

void ModelServer::RenewRegions() {
  TrainerRegions::Peers peers;
  peers.tell = [raw = model_.get()](const Region& region) { return raw->Register(region); };
  peers.forget = [weak = std::weak_ptr<Model>(model_)](RegionId region) {
    if (const std::shared_ptr<Model> model = weak.lock()) model->Deregister(region);
  };
  regions_ = std::make_unique<TrainerRegions>(std::move(peers));
}

ModelServer::~ModelServer() = default;

bool ModelServer::is_over() const { return server_->is_over(); }

void ModelServer::AwaitEnd() const { server_->AwaitEnd(); }

void ModelShelf::Serves(uint64_t attachment) { serving_.insert(attachment); }

void ModelShelf::HasMade(const std::string& name) { names_.insert(name); }

void ModelShelf::HasServed(uint64_t attachment, const std::string& name,
                           std::unique_ptr<ModelServer> server) {
  if (const auto found = names_.find(name); found != names_.end()) names_.erase(found);
  if (const auto found = serving_.find(attachment); found != serving_.end()) serving_.erase(found);
  if (server != nullptr) {
    left_.push_back(std::move(server));
  } else if (!name.empty()) {
    let_go_.insert(attachment);
  }
}

absl::StatusOr<std::unique_ptr<ModelServer>> ModelShelf::Take(uint64_t attachment,
                                                              const std::string& name) {
  const auto has_name = [&name](const auto& server) { return server->name() == name; };
  const auto found = std::find_if(left_.begin(), left_.end(), has_name);
  if (found != left_.end()) {
    std::unique_ptr<ModelServer> server = std::move(*found);
    left_.erase(found);
    return server;
  }
  // A script that restores a snapshot lets its model go and makes it once more.
  if (serving_.count(attachment) < serving_.size() || names_.contains(name)) {
    return absl::UnavailableError(
        absl::StrCat("model '", name, "': models of a former trainer are still under way"));
  }
  if (left_.empty()) return nullptr;
  return absl::NotFoundError(absl::StrCat(
      "model '", name, "': the trainer comes in the place of one whose model is '",
      left_.front()->name(), "'; start the same script, or the trainers of all ranks"));
}

bool ModelShelf::HasOutrunSnapshot() const {
  return std::any_of(left_.begin(), left_.end(),
                     [](const auto& server) { return server->snapshot_is_behind(); });
}

void ModelShelf::PutBack(std::unique_ptr<ModelServer> server) {
  left_.push_back(std::move(server));
}

}  // namespace pelton
