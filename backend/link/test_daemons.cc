#include "backend/link/test_daemons.h"

#include <stdlib.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/check.h"

namespace pelton {
namespace {

constexpr char kToken[] = "a-token-of-sixteen-bytes-or-more";

// Daemons are ended here, never hung: their streams close. All of them share a process, which a
// sanitizer on a busy machine keeps from its heartbeats for longer than a real one is.
constexpr absl::Duration kSilence = absl::Seconds(60);

BackendOptions OptionsOf(int rank, size_t world_size) {
  BackendOptions options;
  options.rank = Rank(rank);
  options.world_size = WorldSize(static_cast<int32_t>(world_size));
  options.operation_timeout = absl::Seconds(60);
  options.join_timeout = absl::Seconds(60);
  options.heartbeat_timeout = kSilence;
  return options;
}

}  // namespace

TestDaemons::TestDaemons(int world_size, absl::Duration trainer_grace, Hosts hosts)
    : daemons_(world_size) {
  char folder[] = "/tmp/pelton-link-XXXXXX";
  PELTON_CHECK(mkdtemp(folder) != nullptr);
  folder_ = folder;
  auto coordinator = ServeCoordinatorAt("127.0.0.1:0", kToken, {}, kSilence);
  PELTON_CHECK_OK(coordinator.status());
  coordinator_ = *std::move(coordinator);
  std::vector<std::thread> starting;
  for (int rank = 0; rank < world_size; ++rank) {
    starting.emplace_back([this, rank, trainer_grace, hosts] {
      BackendOptions options = OptionsOf(rank, daemons_.size());
      options.token = kToken;
      options.coordinator_address = coordinator_->address();
      if (hosts == Hosts::kOneEach) options.host_label = absl::StrCat("host ", rank);
      auto backend = Backend::Start(options);
      PELTON_CHECK_OK(backend.status());
      daemons_[rank].backend = *std::move(backend);
      auto listener = LinkServer::Listen(PathOf(rank));
      PELTON_CHECK_OK(listener.status());
      daemons_[rank].server = LinkServer::Start(daemons_[rank].backend.get(), PathOf(rank),
                                                *std::move(listener), trainer_grace);
    });
  }
  for (std::thread& thread : starting) thread.join();
}

TestDaemons::~TestDaemons() {
  // Together: a daemon that ends waits for no other one, but each takes its time.
  std::vector<std::thread> ending;
  for (size_t rank = 0; rank < daemons_.size(); ++rank) {
    ending.emplace_back([this, rank] { End(static_cast<int>(rank)); });
  }
  for (std::thread& thread : ending) thread.join();
  coordinator_.reset();
  rmdir(folder_.c_str());
}

BackendOptions TestDaemons::TrainerOptions(int rank) const {
  BackendOptions options = OptionsOf(rank, daemons_.size());
  options.coordinator_address = absl::StrCat("unix:", PathOf(rank));
  return options;
}

std::string TestDaemons::PathOf(int rank) const { return absl::StrCat(folder_, "/", rank); }

void TestDaemons::End(int rank) {
  daemons_[rank].server.reset();
  daemons_[rank].backend.reset();
}

}  // namespace pelton
