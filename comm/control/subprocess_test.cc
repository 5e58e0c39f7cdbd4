#include "comm/control/subprocess_test.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/time/clock.h"
#include "core/base/check.h"

namespace pelton {

Subprocess::Subprocess(const std::vector<std::string>& command) {
  int to_child[2], from_child[2];
  PELTON_CHECK(pipe2(to_child, O_CLOEXEC) == 0) << "pipe";
  PELTON_CHECK(pipe2(from_child, O_CLOEXEC) == 0) << "pipe";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
  arguments.push_back(nullptr);
  // Spawned, not forked: gRPC's threads do not survive a fork.
  const int error = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  PELTON_CHECK(error == 0) << command[0] << ": error " << error;
  posix_spawn_file_actions_destroy(&actions);
  close(to_child[0]);
  close(from_child[1]);
  input_ = to_child[1];
  output_ = from_child[0];
}

Subprocess::~Subprocess() {
  CloseInput();
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  close(output_);
}

std::string Subprocess::ReadLine(absl::Time deadline) {
  while (true) {
    if (const size_t end = buffered_.find('\n'); end != std::string::npos) {
      const std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    pollfd readable{output_, POLLIN, 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0 || poll(&readable, 1, static_cast<int>(left_ms)) <= 0) return "";
    char bytes[4096];
    const ssize_t count = read(output_, bytes, sizeof(bytes));
    if (count <= 0) return "";
    buffered_.append(bytes, count);
  }
}

void Subprocess::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

void Subprocess::Signal(int number) { kill(pid_, number); }

}  // namespace pelton
