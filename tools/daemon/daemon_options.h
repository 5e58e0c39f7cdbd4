// The command line of pelton-daemon.
#ifndef PELTON_TOOLS_DAEMON_DAEMON_OPTIONS_H_
#define PELTON_TOOLS_DAEMON_DAEMON_OPTIONS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "backend/backend.h"

namespace pelton {

// Threads: a value. Owns: its strings.
struct DaemonOptions {
  enum class Action { kServe, kHelp, kStatus, kStop, kNoHeir };
  Action action = Action::kServe;
  std::string socket;  // path
  // How long it stays without a trainer.
  absl::Duration idle_timeout = absl::Minutes(1);
  // How long the step under way may take to its end, once the daemon is told to end.
  absl::Duration step_grace = absl::Seconds(5);
  // How long the other ranks wait for another trainer in the place of one that has died; zero: its
  // death ends what they are at.
  absl::Duration trainer_grace = absl::Minutes(1);
  bool is_verbose = false;
  bool as_json = false;         // of kStatus
  bool removes_folder = false;  // that of the socket, at the end, if nobody else's is left there
  BackendOptions backend;       // of kServe
};

// What `--help` prints.
std::string DaemonHelp();

// From the words behind the program's name, the files that --flags-file names (a flag a line, # for
// comments) and, where a flag is not given, the environment's variable of the same meaning; those
// of the job's place are set in this process's environment. Threads: one, before all others.
// Errors: InvalidArgument: names the flag, or the variable, and its value; NotFound: no such file.
absl::StatusOr<DaemonOptions> ParseDaemonOptions(std::vector<std::string> words);

}  // namespace pelton

#endif  // PELTON_TOOLS_DAEMON_DAEMON_OPTIONS_H_
