// A model that a daemon has for a trainer.
#ifndef PELTON_BACKEND_LINK_MODEL_SERVER_H_
#define PELTON_BACKEND_LINK_MODEL_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/link/link_socket.h"
#include "backend/link/trainer_regions.h"
#include "backend/model.h"
#include "comm/group.h"
#include "core/base/ids.h"
#include "core/plan/plan.h"

namespace pelton {

class ModelServer;
class RoundsServer;
struct RoundsProgress;
namespace link {  // proto/link_rounds.proto
class MakeModel;
class RoundsQuestion;
}  // namespace link

// Threads: a value. Owns: its callbacks; shares the socket with the server that accepted it.
struct ModelServerOptions {
  std::shared_ptr<LinkSocket> socket;
  Rank rank = {};  // of this process in the world
  // Makes the model that the trainer asks for, as Model::Create does.
  std::function<absl::StatusOr<std::unique_ptr<Model>>(const ModelOptions& options,
                                                       std::vector<TensorSpec> tensors)>
      make = nullptr;
  uint64_t attachment = 1;  // the daemon's number of it
  // Has the trainers of a group meet before their daemons make the model, so that a daemon does not
  // wait for the model of a trainer that has gone. Errors: end the making. May be empty.
  std::function<absl::Status(const Group& group, absl::Time deadline)> meet = nullptr;
  // A trainer that dies leaves its model to another one: see RoundsServerOptions::keeps_progress.
  bool keeps_progress = false;
  // As RoundsServerOptions::snapshots.
  const std::atomic<uint64_t>* snapshots = nullptr;
  // The model of that name which a trainer has left, for the one that asks; null: there is none,
  // and it is made. Errors: end the making. May be empty.
  std::function<absl::StatusOr<std::unique_ptr<ModelServer>>(const std::string& name,
                                                             absl::Time deadline)>
      find_left = nullptr;
  // Takes it back where the one that asks could not have it.
  std::function<void(std::unique_ptr<ModelServer>)> put_back = nullptr;
  // As ModelOptions::on_failure.
  std::function<void(const absl::Status&)> on_failure = nullptr;
  // As RoundsServerOptions::own_end.
  std::function<absl::Status()> own_end = nullptr;
};

// Threads: as RoundsServer. Owns: the model, what serves it, and its share of the trainer's memory;
// must go before the backend.
class ModelServer {
 public:
  // Receives the question of a trainer that has just connected, makes the model, which is
  // collective over its group, and serves it until the trainer closes the socket: see AttachModel.
  // Blocks: until the trainer has asked and the ranks agree, or the backend's join timeout. Errors:
  // those of the question and of Model::Create, which the trainer is told as well; of a model that
  // was left: those of RoundsServer::TakeProgress and Start; InvalidArgument: names the first thing
  // in which the trainer's model differs.
  static absl::StatusOr<std::unique_ptr<ModelServer>> Serve(Backend& backend,
                                                            ModelServerOptions options);
  // The same without a backend: `options` say the rank, and how a model is made.
  static absl::StatusOr<std::unique_ptr<ModelServer>> Serve(ModelServerOptions options);
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  // Whether the trainer has gone; then nothing but destroying this is left.
  bool is_over() const;
  // Blocks: until then.
  void AwaitEnd() const;
  // Whether its trainer has died and another one may have the model.
  bool is_left() const;
  // Once that is so: as RoundsServer.
  bool snapshot_is_behind() const;
  const std::string& name() const;
  // Once that is so, and nobody will: ends the rounds, if one is under way.
  void GiveUp(const absl::Status& reason);

 private:
  ModelServer(std::unique_ptr<Model> model, const link::MakeModel& question);
  static absl::StatusOr<std::unique_ptr<ModelServer>> Answer(ModelServerOptions& options);
  absl::Status CheckSame(const link::MakeModel& other) const;
  // Serves what it has on `options.socket`, for `question`.
  absl::Status Begin(ModelServerOptions& options, const link::MakeModel& question);
  // For a trainer in the place of the one that has died.
  absl::Status GoOn(ModelServerOptions& options, const link::RoundsQuestion& question);
  void RenewRegions();

  // The rounds may be at work on it until the model goes, which then forgets it by itself.
  std::unique_ptr<TrainerRegions> regions_;
  const std::unique_ptr<const link::MakeModel> question_;  // of the first trainer
  // Of a trainer that has died; null: it is the server's.
  std::unique_ptr<RoundsProgress> progress_;
  const std::shared_ptr<Model> model_;    // shared: the regions ask whether it is still there
  std::unique_ptr<RoundsServer> server_;  // last: it uses the others
};

// Models of a trainer that has died, until another one comes in its place. What is being served is
// known as well, because the trainer's death may be seen on one of its connections before it is on
// another. Threads: one at a time. Owns: the models that nobody serves.
class ModelShelf {
 public:
  // A model of this attachment is being made, or served, from now on.
  void Serves(uint64_t attachment);
  // It is no longer; `server`: its trainer has died, and another one may have it. Null: it is gone.
  // `name`: as in HasMade; empty: it was never made.
  void HasServed(uint64_t attachment, const std::string& name, std::unique_ptr<ModelServer> server);
  // Whether there is any, served or not.
  bool HasAny() const { return !left_.empty() || !serving_.empty(); }
  // Whether a model of this attachment has gone in good order, and there is none.
  bool HasLetAllGo(uint64_t attachment) const { return !HasAny() && let_go_.contains(attachment); }
  // Whether a model of this attachment is being made, or served.
  bool IsServing(uint64_t attachment) const { return serving_.contains(attachment); }
  void HasMade(const std::string& name);
  // Whether the last snapshot of the trainer that has died is too old for one of those left here.
  bool HasOutrunSnapshot() const;

  // The model of this name, for the trainer `attachment`; null: there is none, and nothing else
  // either, so that it is a new one. Errors: Unavailable: models of others are yet to come here, or
  // one of that name, so that it is to be asked again; NotFound: there are others, named.
  absl::StatusOr<std::unique_ptr<ModelServer>> Take(uint64_t attachment, const std::string& name);
  void PutBack(std::unique_ptr<ModelServer> server);
  // All that are there.
  std::list<std::unique_ptr<ModelServer>> TakeAll() { return std::exchange(left_, {}); }

 private:
  std::multiset<uint64_t> serving_;   // those that are being made included
  std::multiset<std::string> names_;  // of those that are made, and served
  std::set<uint64_t> let_go_;         // attachments of which a model has gone in good order
  std::list<std::unique_ptr<ModelServer>> left_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_MODEL_SERVER_H_
