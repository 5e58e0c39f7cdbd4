#include "backend/link/model_server.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/rounds_messages.h"
#include "backend/link/rounds_server.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

absl::StatusOr<link::RoundsQuestion> ReceiveQuestion(LinkSocket& socket) {
  link::RoundsQuestion question;
  RETURN_IF_ERROR(socket.Receive(question, Clock::Real().Now() + limits::kStopTimeout));
  if (question.has_make()) return question;
  return absl::InvalidArgumentError(absl::StrCat("the trainer asks question ",
                                                 static_cast<int>(question.what_case()),
                                                 " before it has asked for a model"));
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(Backend& backend,
                                                 const ModelServerOptions& options,
                                                 const link::RoundsQuestion& question) {
  ASSIGN_OR_RETURN(ModelQuestion asked, FromMessage(question.make()));
  asked.options.on_failure = options.on_failure;
  if (options.meet != nullptr) {
    const absl::Time deadline = Clock::Real().Now() + DurationOf(question.timeout_ns());
    RETURN_IF_ERROR(options.meet(asked.options.group, deadline));
  }
  return Model::Create(backend, asked.options, std::move(asked.tensors));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Serve(Backend& backend,
                                                                ModelServerOptions options) {
  absl::StatusOr<link::RoundsQuestion> question = ReceiveQuestion(*options.socket);
  absl::StatusOr<std::unique_ptr<Model>> model =
      question.ok() ? MakeModel(backend, options, *question)
                    : absl::StatusOr<std::unique_ptr<Model>>(question.status());
  if (!model.ok()) {
    link::RoundsAnswer answer;
    *answer.mutable_status() = ToMessage(model.status());
    // A trainer that is gone needs no answer.
    options.socket->Send(answer, Clock::Real().Now() + limits::kStopTimeout).IgnoreError();
    return model.status();
  }
  RoundsServerOptions rounds;
  rounds.socket = std::move(options.socket);
  rounds.model_name = question->make().name();
  rounds.rank = backend.rank();
  std::unique_ptr<ModelServer> server(new ModelServer(*std::move(model)));
  Model& made = *server->model_;
  rounds.rank_in_group = made.rank();
  rounds.attachment = options.attachment;
  rounds.sent_bytes = [&made] { return made.sent_bytes(); };
  rounds.regions = server->regions_.get();
  rounds.own_end = std::move(options.own_end);
  ASSIGN_OR_RETURN(server->server_, RoundsServer::Start(made.rounds(), std::move(rounds)));
  return server;
}

ModelServer::ModelServer(std::unique_ptr<Model> model) : model_(std::move(model)) {
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

}  // namespace pelton
