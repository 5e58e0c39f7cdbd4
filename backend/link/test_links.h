// Trainers and daemons as threads of one process, over socket pairs: for tests.
#ifndef PELTON_BACKEND_LINK_TEST_LINKS_H_
#define PELTON_BACKEND_LINK_TEST_LINKS_H_

#include <sys/socket.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/link/link_socket.h"
#include "backend/link/linked_model.h"
#include "backend/link/model_server.h"
#include "backend/model.h"
#include "backend/test_ranks.h"
#include "core/actor/wait_hook.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/plan.h"

namespace pelton {

// Both ends of a new connection. Threads: a value. Owns: the sockets.
struct SocketPair {
  std::unique_ptr<LinkSocket> daemon;
  std::unique_ptr<LinkSocket> trainer;

  static SocketPair Make() {
    int ends[2];
    PELTON_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    return {std::make_unique<LinkSocket>(Descriptor(ends[0])),
            std::make_unique<LinkSocket>(Descriptor(ends[1]))};
  }
};

// A model as a trainer has it, and what serves it in the place of a daemon.
// Threads: as Model. Owns: both, the trainer's part goes first.
class LinkedPair {
 public:
  // Collective, as Model::Create.
  static absl::StatusOr<std::unique_ptr<LinkedPair>> Create(Backend& backend,
                                                            const ModelOptions& options,
                                                            std::vector<TensorSpec> tensors,
                                                            LinkedJob job = {}) {
    ModelServerOptions serving;
    serving.rank = backend.rank();
    serving.make = [&backend](const ModelOptions& model, std::vector<TensorSpec> specs) {
      return Model::Create(backend, model, std::move(specs));
    };
    return Create(std::move(serving), options, std::move(tensors), std::move(job));
  }
  // The same with a daemon that `serving` describes, but for its socket.
  static absl::StatusOr<std::unique_ptr<LinkedPair>> Create(ModelServerOptions serving,
                                                            const ModelOptions& options,
                                                            std::vector<TensorSpec> tensors,
                                                            LinkedJob job) {
    SocketPair sockets = SocketPair::Make();
    auto pair = std::make_unique<LinkedPair>();
    job.rank = serving.rank;
    serving.socket = std::move(sockets.daemon);
    absl::Status served;
    SideThread daemon([&] {
      absl::StatusOr<std::unique_ptr<ModelServer>> server = ModelServer::Serve(std::move(serving));
      served = server.status();
      if (server.ok()) pair->server_ = *std::move(server);
    });
    absl::StatusOr<std::unique_ptr<Algorithm>> algorithm =
        MakeAlgorithm(options.algorithm, options.algorithm_options);
    PELTON_CHECK_OK(algorithm.status());
    absl::StatusOr<std::unique_ptr<Model>> model =
        AttachModel(std::move(sockets.trainer), std::move(job), options, *std::move(algorithm),
                    std::move(tensors), Soon());
    daemon.Join();
    RETURN_IF_ERROR(model.status());
    RETURN_IF_ERROR(served);
    pair->model_ = *std::move(model);
    return pair;
  }

  Model& model() { return *model_; }
  // For whoever keeps it apart from the daemon's part, which must outlive it.
  std::unique_ptr<Model> TakeModel() { return std::move(model_); }
  // The daemon lets the trainer go.
  void EndServer() { server_.reset(); }
  // The trainer goes.
  void EndTrainer() { model_.reset(); }
  // Whether the daemon has seen it go by `deadline`. Blocks: until then.
  bool AwaitOver(absl::Time deadline) const {
    if (WaitHook* const hook = WaitHook::Current()) {
      return hook->WaitUntil([this] { return server_->is_over(); }, deadline);
    }
    while (!server_->is_over() && WaitClock().Now() < deadline) std::this_thread::yield();
    return server_->is_over();
  }

 private:
  std::unique_ptr<ModelServer> server_;
  std::unique_ptr<Model> model_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TEST_LINKS_H_
