// A model that a daemon has for a trainer.
#ifndef PELTON_BACKEND_LINK_MODEL_SERVER_H_
#define PELTON_BACKEND_LINK_MODEL_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/link/link_socket.h"
#include "backend/link/trainer_regions.h"
#include "backend/model.h"
#include "comm/group.h"

namespace pelton {

class RoundsServer;

// Threads: a value. Owns: its callbacks; shares the socket with whoever accepted it.
struct ModelServerOptions {
  std::shared_ptr<LinkSocket> socket;
  uint64_t attachment = 1;  // the daemon's number of it
  // Has the trainers of a group meet before their daemons make the model, so that a daemon does not
  // wait for the model of a trainer that has gone. Errors: end the making. May be empty.
  std::function<absl::Status(const Group& group, absl::Time deadline)> meet = nullptr;
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
  // Blocks: until the trainer has asked and the ranks
  // agree, or the backend's join timeout. Errors: those of the question and of Model::Create, which
  // the trainer is told as well.
  static absl::StatusOr<std::unique_ptr<ModelServer>> Serve(Backend& backend,
                                                            ModelServerOptions options);
  ~ModelServer();
  ModelServer(const ModelServer&) = delete;
  ModelServer& operator=(const ModelServer&) = delete;

  // Whether the trainer has gone; then nothing but destroying this is left.
  bool is_over() const;
  // Blocks: until then.
  void AwaitEnd() const;

 private:
  explicit ModelServer(std::unique_ptr<Model> model);

  // The rounds may be at work on it until the model goes, which then forgets it by itself.
  std::unique_ptr<TrainerRegions> regions_;
  const std::shared_ptr<Model> model_;    // shared: the regions ask whether it is still there
  std::unique_ptr<RoundsServer> server_;  // last: it uses the others
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_MODEL_SERVER_H_
