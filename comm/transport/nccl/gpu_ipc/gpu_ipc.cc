// gpu_ipc [--ranks N] [--buckets N] [--bucket-bytes N] [--kernels N] [--kernel-bytes N]
//         [--passes N] [--steps N] [--turns N] [--limit-s N]
//
// An experiment: what a step costs whose buckets' work a daemon launches, over CUDA IPC, beside one
// that launches it in process. It starts a trainer for each rank, and each of these a daemon; all
// of them are this program. tools/gpu_check finds the libraries and starts it. Exit status: 0 all
// is well, 1 something failed, 2 wrong usage, 3 there is no GPU, or no library to use it with.
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "comm/transport/nccl/gpu_ipc/daemon.h"
#include "comm/transport/nccl/gpu_ipc/device.h"
#include "comm/transport/nccl/gpu_ipc/experiment.h"
#include "comm/transport/nccl/gpu_ipc/peer.h"
#include "comm/transport/nccl/gpu_ipc/trainer.h"
#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/shm/socket.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::gpu_ipc {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kNoGpu = 3;
// In which trainers and daemons, whose waits have ended, say so.
constexpr absl::Duration kGrace = absl::Seconds(10);

// Which of the processes this is. Threads: a value. Owns: nothing.
struct Role {
  int parent = 0;  // 0: the first
  int rank = 0;
  int is_daemon = 0;
};

absl::Status Parse(int argc, char** argv, Experiment& experiment, Role& role) {
  for (int i = 1; i < argc; i += 2) {
    absl::string_view name = argv[i];
    if (!absl::ConsumePrefix(&name, "--") || i + 1 == argc) {
      return absl::InvalidArgumentError(absl::StrCat("'", argv[i], "': a flag and a value"));
    }
    int* const field = name == "parent"   ? &role.parent
                       : name == "rank"   ? &role.rank
                       : name == "daemon" ? &role.is_daemon
                                          : nullptr;
    if (field == nullptr) {
      RETURN_IF_ERROR(experiment.Set(name, argv[i + 1]));
    } else if (!absl::SimpleAtoi(argv[i + 1], field)) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, ": no number"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NewId(const nccl::NcclLibrary& library) {
  nccl::UniqueId id{};
  RETURN_IF_ERROR(library.ToStatus(library.calls().get_unique_id(&id), "ncclGetUniqueId", nullptr));
  return IdToText(id);
}

absl::StatusOr<std::vector<Peer>> StartTrainers(const Experiment& experiment) {
  std::vector<Peer> trainers;
  for (int rank = 0; rank < experiment.ranks; ++rank) {
    std::vector<std::string> flags = {"--rank", absl::StrCat(rank)};
    const std::vector<std::string> shared = experiment.ToFlags();
    flags.insert(flags.end(), shared.begin(), shared.end());
    ASSIGN_OR_RETURN(Peer trainer, Peer::Start(absl::StrCat("rank ", rank, "'s trainer"), flags));
    trainers.push_back(std::move(trainer));
  }
  return trainers;
}

// The first that fails ends the others.
absl::Status JoinTrainers(std::vector<Peer> trainers, absl::Time deadline) {
  while (!trainers.empty()) {
    std::vector<int> sockets;
    for (const Peer& trainer : trainers) sockets.push_back(trainer.socket());
    ASSIGN_OR_RETURN(const std::vector<bool> ended, shm::AwaitReadable(sockets, deadline));
    for (size_t i = trainers.size(); i-- > 0;) {
      if (!ended[i]) continue;
      RETURN_IF_ERROR(trainers[i].Join(deadline));
      trainers.erase(trainers.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  return absl::OkStatus();
}

absl::Status RunLauncher(const Device& device, Experiment experiment, absl::Time deadline) {
  // ALLOW: this is a program
  std::cout << device.Describe() << std::endl;
  ASSIGN_OR_RETURN(experiment.trainers_id, NewId(device.library()));
  ASSIGN_OR_RETURN(experiment.daemons_id, NewId(device.library()));
  ASSIGN_OR_RETURN(std::vector<Peer> trainers, StartTrainers(experiment));
  return JoinTrainers(std::move(trainers), deadline + kGrace);
}

absl::Status RunRank(Device& device, const Experiment& experiment, const Role& role,
                     absl::Time deadline) {
  RETURN_IF_ERROR(device.ToStatus(device.calls().set_device(0), "cudaSetDevice"));
  const std::string parent = role.is_daemon != 0 ? "trainer" : "launcher";
  ASSIGN_OR_RETURN(Peer peer, Peer::Parent(absl::StrCat("the ", parent), role.parent));
  if (role.is_daemon != 0) return RunDaemon(device, experiment, role.rank, peer, deadline);
  ASSIGN_OR_RETURN(const Figures figures,
                   // ALLOW: this is a program
                   RunTrainer(device, experiment, role.rank, peer, deadline, std::cout));
  // ALLOW: this is a program
  if (role.rank == 0) Print(experiment, figures, std::cout);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Experiment experiment;
  Role role;
  if (const absl::Status parsed = Parse(argc, argv, experiment, role); !parsed.ok()) {
    // ALLOW: this is a program
    std::cerr << "gpu_ipc: " << parsed.message() << "; its head comment names the flags\n";
    return kUsage;
  }
  absl::StatusOr<std::unique_ptr<Device>> device = Device::Open();
  if (!device.ok()) {
    // ALLOW: this is a program
    std::cout << "gpu_ipc: no GPU here: " << device.status().message() << '\n';
    return kNoGpu;
  }
  const absl::Time deadline = Clock::Real().Now() + absl::Seconds(experiment.limit_s);
  // Never deleted, see Device.
  Device& opened = *device->release();
  const absl::Status status = role.parent == 0 ? RunLauncher(opened, experiment, deadline)
                                               : RunRank(opened, experiment, role, deadline);
  if (status.ok()) return 0;
  const std::string who = role.parent == 0      ? "launcher"
                          : role.is_daemon != 0 ? absl::StrCat("rank ", role.rank, "'s daemon")
                                                : absl::StrCat("rank ", role.rank, "'s trainer");
  // ALLOW: this is a program
  std::cerr << "gpu_ipc: " << who << ": " << status.message() << std::endl;
  return kFailed;
}

}  // namespace
}  // namespace pelton::gpu_ipc

int main(int argc, char** argv) {
  const int status = pelton::gpu_ipc::Main(argc, argv);
  // ALLOW: this is a program
  std::cout.flush();
  // Whoever waits on the device for a dead process would wait here, too.
  std::_Exit(status);
}
