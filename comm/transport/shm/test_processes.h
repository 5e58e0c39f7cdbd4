// Ranks as processes of their own, for tests.
#ifndef PELTON_COMM_TRANSPORT_SHM_TEST_PROCESSES_H_
#define PELTON_COMM_TRANSPORT_SHM_TEST_PROCESSES_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"

namespace pelton::shm {

// Forks a process per rank. The caller must be single-threaded when it starts them, and no rank may
// return to the test framework: what it finds wrong it returns as text.
// Threads: one. Owns: the processes, which it kills if they are still there.
class Processes {
 public:
  // What a rank does: makes a transport of `options` and uses it. "" is success.
  using Body = std::function<std::string(const TransportOptions& options)>;

  Processes(int world_size, const Body& body);
  ~Processes();

  pid_t pid(int rank) const { return pids_[rank]; }
  // Waits for a rank to say `Mark(count)`, at least.
  void AwaitMark(int rank, uint32_t count);
  // To be called by a rank: what AwaitMark waits for. Every call adds one.
  static void Mark(int rank);
  // Waits for the end of `rank`: "" if it ended well, else what it said, or its signal.
  std::string Join(int rank);
  std::string JoinAll();

 private:
  std::vector<pid_t> pids_;
};

// To be called by a rank: forbids other processes to read this one's memory, also to those of root.
void ForbidReaders();

// What a rank needs to communicate with all others.
struct End {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Communicator> communicator;  // of the world
};

using TransportMaker = absl::StatusOr<std::unique_ptr<Transport>> (*)(const TransportOptions&);

// Blocks: until all ranks have called. Errors: those of `make` and Open.
absl::StatusOr<End> MakeEnd(const TransportOptions& options, TransportMaker make);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_TEST_PROCESSES_H_
