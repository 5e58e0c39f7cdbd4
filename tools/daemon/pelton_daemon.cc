// pelton-daemon: joins a job in the name of one rank and serves that rank's trainer. See
// docs/daemon.md.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backend/backend.h"
#include "backend/link/daemon_questions.h"
#include "backend/link/link_server.h"
#include "backend/link/sight.h"
#include "backend/link/tool_server.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/status.h"
#include "tools/daemon/daemon_options.h"
#include "tools/daemon/socket_folder.h"

namespace pelton {
namespace {

constexpr absl::Duration kToolPatience = absl::Seconds(5);
// A trainer whose job has failed is told why, and has this long to go.
constexpr absl::Duration kFailureGrace = absl::Seconds(5);
// A signal ends the wait at once; a failure, or a tool that asks for the end, is seen so late.
constexpr long kLookNanoseconds = 500'000'000;

bool is_verbose = false;

void WriteLine(LogLevel level, absl::string_view line) {
  if (level == LogLevel::kInfo && !is_verbose) return;
  const char* const name = level == LogLevel::kInfo      ? "info"
                           : level == LogLevel::kWarning ? "warning"
                                                         : "error";
  const std::string text = absl::StrCat(
      absl::FormatTime("%H:%M:%E3S", ToWallTime(Clock::Real().Now()), absl::LocalTimeZone()), " ",
      name, " ", line, "\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// While the daemon joins: the signals are blocked, so that one thread takes them.
absl::Status CheckPendingSignal() {
  sigset_t pending;
  sigpending(&pending);
  const bool has_some = sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
  return has_some ? InterruptedError("pelton-daemon was told to end") : absl::OkStatus();
}

// Whether a signal has come meanwhile.
bool AwaitSignal() {
  const sigset_t signals = EndingSignals();
  const timespec patience{0, kLookNanoseconds};
  return sigtimedwait(&signals, nullptr, &patience) > 0;
}

// Lets the step under way end, or has all ranks give it up.
void EndStep(LinkServer& server, absl::Duration step_grace) {
  if (server.seat().Current().pid == 0) return;
  const absl::Status step = server.AwaitStepEnd(Clock::Real().Now() + step_grace);
  if (!step.ok()) Log(LogLevel::kWarning, absl::StrCat("pelton-daemon: gives up ", step.message()));
  server.EndTrainers(step, Clock::Real().Now() + kFailureGrace);
}

// Until the daemon is to end. Errors: the job has failed.
absl::Status ServeUntilEnd(LinkServer& server, ToolServer& tools, const Backend& backend,
                           const DaemonOptions& options) {
  while (true) {
    if (AwaitSignal() || server.stop_requested()) {
      EndStep(server, options.step_grace);
      return absl::OkStatus();
    }
    if (absl::Status failure = backend.failure(); !failure.ok()) {
      tools.SetHealthy(false);
      const absl::Time patience = Clock::Real().Now() + kFailureGrace;
      while (server.seat().Current().pid != 0 && Clock::Real().Now() < patience) AwaitSignal();
      return failure;
    }
    if (server.seat().VacantSince() + options.idle_timeout < Clock::Real().Now()) {
      Log(LogLevel::kInfo, "pelton-daemon: no trainer has come for the idle timeout");
      return absl::OkStatus();
    }
  }
}

absl::Status Serve(const DaemonOptions& options) {
  // Before the daemon joins: a trainer that comes early waits and finds that somebody listens.
  ASSIGN_OR_RETURN(Descriptor listener, LinkServer::Listen(options.socket));
  absl::StatusOr<std::unique_ptr<Backend>> backend = Backend::Start(options.backend);
  if (!backend.ok()) {
    unlink(options.socket.c_str());
    return backend.status();
  }
  SetInterruptCheck(nullptr);  // from now on a signal ends the daemon in good order
  const std::unique_ptr<LinkServer> server =
      LinkServer::Start(backend->get(), options.socket, std::move(listener), options.trainer_grace);
  Log(LogLevel::kInfo,
      absl::StrCat("pelton-daemon: serves rank ", options.backend.rank.value(), " of ",
                   options.backend.world_size.value(), " at ", options.socket));
  ToolAnswers answers;
  answers.status = [&server](proto::LinkStatus* status) { *status = server->Status(); };
  answers.stop = [&server] { server->RequestStop(); };
  ASSIGN_OR_RETURN(const std::unique_ptr<ToolServer> tools,
                   ToolServer::Start(absl::StrCat(options.socket, ".grpc"), std::move(answers)));
  return ServeUntilEnd(*server, *tools, **backend, options);
}

absl::Status ServeInFolder(const DaemonOptions& options) {
  RETURN_IF_ERROR(PrepareSocketFolder(options.socket));
  const absl::Status served = Serve(options);
  if (options.removes_folder) RemoveSocketFolder(options.socket);
  return served;
}

absl::Status PrintStatus(const DaemonOptions& options) {
  ASSIGN_OR_RETURN(const proto::LinkStatus status,
                   AskStatus(options.socket, Clock::Real().Now() + kToolPatience));
  std::puts((options.as_json ? JsonOf(status) : TextOf(status)).c_str());
  return absl::OkStatus();
}

absl::Status Run(const DaemonOptions& options) {
  switch (options.action) {
    case DaemonOptions::Action::kHelp:
      std::fputs(DaemonHelp().c_str(), stdout);
      return absl::OkStatus();
    case DaemonOptions::Action::kStatus:
      return PrintStatus(options);
    case DaemonOptions::Action::kStop:
      return AskToStop(options.socket, Clock::Real().Now() + kToolPatience);
    case DaemonOptions::Action::kNoHeir:
      return TellOfNoHeir(options.socket, Clock::Real().Now() + kToolPatience);
    case DaemonOptions::Action::kServe:
      return ServeInFolder(options);
  }
  return absl::OkStatus();
}

int Main(std::vector<std::string> words) {
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // The trainer inherits the same prefix.
  if (const char* const prefix = std::getenv("PELTON_TRACE"); prefix != nullptr && *prefix != 0) {
    setenv("PELTON_TRACE", absl::StrCat(prefix, ".daemon").c_str(), 1);
  }
  SetLogSink(&WriteLine);
  const absl::StatusOr<DaemonOptions> options = ParseDaemonOptions(std::move(words));
  absl::Status status = options.status();
  if (options.ok()) {
    is_verbose = options->is_verbose;
    if (options->action == DaemonOptions::Action::kServe) SetInterruptCheck(&CheckPendingSignal);
    status = Run(*options);
  }
  if (status.ok() || IsInterrupted(status)) return 0;
  WriteLine(LogLevel::kError, absl::StrCat("pelton-daemon: ", status.message()));
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace pelton

int main(int count, char** words) {
  return pelton::Main(std::vector<std::string>(words + 1, words + count));
}
