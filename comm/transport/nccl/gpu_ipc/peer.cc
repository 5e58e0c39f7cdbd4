#include "comm/transport/nccl/gpu_ipc/peer.h"

#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/transport/nccl/gpu_ipc/experiment.h"
#include "comm/transport/shm/socket.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"

namespace pelton::gpu_ipc {
namespace {

constexpr char kThisProgram[] = "/proc/self/exe";

absl::Status SystemError(absl::string_view call, int error) {
  return absl::InternalError(absl::StrCat(call, ": ", ErrorText(error)));
}

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& flags, int standard_input) {
  std::vector<char*> words = {const_cast<char*>(kThisProgram)};
  for (const std::string& flag : flags) words.push_back(const_cast<char*>(flag.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, standard_input, STDIN_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, kThisProgram, &actions, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return SystemError("posix_spawn", error);
  return pid;
}

}  // namespace

absl::StatusOr<Peer> Peer::Start(std::string name, const std::vector<std::string>& flags) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    return SystemError("socketpair", errno);
  }
  Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  std::vector<std::string> all = {"--parent", absl::StrCat(getpid())};
  all.insert(all.end(), flags.begin(), flags.end());
  ASSIGN_OR_RETURN(const pid_t pid, Spawn(all, theirs.get()));
  return Peer(std::move(name), std::move(ours), pid, /*is_child=*/true);
}

absl::StatusOr<Peer> Peer::Parent(std::string name, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have gone before the kernel was asked.
  if (getppid() != parent) return absl::UnavailableError(absl::StrCat(name, " is gone"));
  return Peer(std::move(name), Descriptor(STDIN_FILENO), parent, /*is_child=*/false);
}

Peer::~Peer() {
  if (!socket_.is_open() || !is_child_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

std::string Peer::Name() const { return absl::StrCat(name_, " (pid ", pid_, ")"); }

absl::Status Peer::Tell(Word word, int number, absl::string_view text) {
  shm::Frame frame;
  frame.type = static_cast<uint32_t>(word);
  frame.region = static_cast<uint32_t>(number);
  const absl::Status sent = shm::Send(socket_.get(), frame, text);
  if (sent.ok()) return sent;
  // It may have said why before it went.
  const absl::Status last = Hear(absl::InfinitePast()).status();
  return absl::IsAborted(last) ? last : Annotate(sent, Name());
}

absl::StatusOr<Message> Peer::Hear(absl::Time deadline) {
  const absl::StatusOr<shm::Message> received = shm::Receive(socket_.get(), deadline);
  if (absl::IsDeadlineExceeded(received.status())) {
    return OutOfTime(absl::StrCat(Name(), " has said a word"));
  }
  if (!received.ok()) return Annotate(received.status(), Name());
  Message message{static_cast<Word>(received->frame.type), static_cast<int>(received->frame.region),
                  received->payload};
  if (message.word == Word::kFailed) {
    return absl::AbortedError(absl::StrCat(Name(), ": ", message.text));
  }
  return message;
}

absl::StatusOr<Message> Peer::Expect(Word word, absl::Time deadline) {
  ASSIGN_OR_RETURN(Message message, Hear(deadline));
  if (message.word == word) return message;
  return absl::InternalError(absl::StrCat(Name(), " said ", static_cast<uint32_t>(message.word),
                                          " where ", static_cast<uint32_t>(word), " was due"));
}

absl::Status Peer::Check() {
  const absl::StatusOr<Message> message = Hear(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(message.status())) return absl::OkStatus();
  if (!message.ok()) return message.status();
  return absl::InternalError(absl::StrCat(Name(), " speaks where nothing is due"));
}

absl::Status Peer::Join(absl::Time deadline) {
  // The kernel closes the child's end of the socket, for which one can wait with a deadline.
  const absl::StatusOr<Message> last = Hear(deadline);
  if (!absl::IsUnavailable(last.status())) {
    return last.ok() ? absl::InternalError(absl::StrCat(Name(), " does not end")) : last.status();
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  is_child_ = false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  if (WIFEXITED(status)) {
    return absl::UnavailableError(absl::StrCat(Name(), " ended with status ", WEXITSTATUS(status)));
  }
  return absl::UnavailableError(absl::StrCat(Name(), " was ended by signal ", WTERMSIG(status)));
}

}  // namespace pelton::gpu_ipc
