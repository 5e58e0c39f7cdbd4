// Daemons of a world as threads of one process.
#ifndef PELTON_BACKEND_LINK_TEST_DAEMONS_H_
#define PELTON_BACKEND_LINK_TEST_DAEMONS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/link/link_server.h"

namespace pelton {

// Threads: one at a time. Owns: a coordinator, a backend and a server for each rank, and the folder
// of their sockets.
class TestDaemons {
 public:
  enum class Hosts { kOne, kOneEach };  // over which the ranks are spread

  explicit TestDaemons(int world_size, absl::Duration trainer_grace = absl::ZeroDuration(),
                       Hosts hosts = Hosts::kOne);
  ~TestDaemons();

  // With which the trainer of a rank starts its backend.
  BackendOptions TrainerOptions(int rank) const;
  std::string PathOf(int rank) const;
  LinkServer& server(int rank) { return *daemons_[rank].server; }
  // As if the daemon's process had ended, in good order.
  void End(int rank);

 private:
  struct Daemon {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<LinkServer> server;
  };

  std::string folder_;
  std::unique_ptr<CoordinatorServer> coordinator_;
  std::vector<Daemon> daemons_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_TEST_DAEMONS_H_
