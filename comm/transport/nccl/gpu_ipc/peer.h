// Two processes that tell each other numbers and short texts: a launcher and its trainers, a
// trainer and its daemon.
#ifndef PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_PEER_H_
#define PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_PEER_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"

namespace pelton::gpu_ipc {

// What is told. Between a trainer and its daemon these follow each other in this order.
enum class Word : uint32_t {
  kHasContext = 100,  // daemon: a stream is made and a kernel has run
  kHandles,           // trainer: those of the buckets' memory and events
  kIsReady,           // daemon: they are opened, and NCCL has connected
  kLaunch,            // trainer: the bucket `number` is ready once its event is
  kLaunched,          // daemon: its work is on a stream, behind which the other event is recorded
  kEnd,               // trainer: it has measured all
  kFailed,            // daemon, at any time: why it ends
};

struct Message {
  Word word;
  int number = 0;
  std::string text;
};

// The other process's end of a socket. Threads: one. Owns: the socket, and a child that it started.
class Peer {
 public:
  // Starts this program anew with `flags`. The child's standard input is its end of the socket.
  // Errors: Internal: the system says no. `name` is for errors: "the daemon of rank 0".
  static absl::StatusOr<Peer> Start(std::string name, const std::vector<std::string>& flags);
  // In a child: its parent, which has the process id `parent`. The kernel kills this process when
  // that one is gone. Errors: Unavailable: it is already.
  static absl::StatusOr<Peer> Parent(std::string name, pid_t parent);

  Peer(Peer&&) = default;
  Peer& operator=(Peer&&) = default;  // to one whose child has ended
  // Kills the child if it is still there, and waits for its end.
  ~Peer();

  // All of these: Errors: Unavailable: names the peer, which is gone; Aborted: its last words.
  absl::Status Tell(Word word, int number = 0, absl::string_view text = "");
  // Blocks: until `deadline`. Errors: also DeadlineExceeded.
  absl::StatusOr<Message> Hear(absl::Time deadline);
  // The same for an answer that can be nothing but `word`.
  absl::StatusOr<Message> Expect(Word word, absl::Time deadline);
  // Whether the peer is still there, as long as it has nothing to say. Blocks: never.
  absl::Status Check();
  // Waits for the end of the child. Errors: Unavailable: it did not end well; DeadlineExceeded.
  absl::Status Join(absl::Time deadline);

  pid_t pid() const { return pid_; }
  int socket() const { return socket_.get(); }

 private:
  Peer(std::string name, Descriptor socket, pid_t pid, bool is_child)
      : name_(std::move(name)), socket_(std::move(socket)), pid_(pid), is_child_(is_child) {}

  std::string Name() const;

  std::string name_;
  Descriptor socket_;
  pid_t pid_;
  bool is_child_;
};

}  // namespace pelton::gpu_ipc

#endif  // PELTON_COMM_TRANSPORT_NCCL_GPU_IPC_PEER_H_
