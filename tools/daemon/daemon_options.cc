#include "tools/daemon/daemon_options.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "backend/environment.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// A flag of the job's place, which is another name of a variable of docs/variables.md.
struct PlaceFlag {
  const char* flag;
  const char* variable;
  const char* meaning;
};
constexpr PlaceFlag kPlaceFlags[] = {
    {"--rank", "RANK", "this rank's number in the job"},
    {"--world-size", "WORLD_SIZE", "number of the job's ranks"},
    {"--coordinator", "PELTON_COORDINATOR",
     "host:port; rank 0's daemon serves the coordinator there"},
    {"--timeout", "PELTON_TIMEOUT", "seconds for each operation"},
    {"--join-timeout", "PELTON_JOIN_TIMEOUT", "seconds until all daemons have joined"},
    {"--heartbeat-timeout", "PELTON_HEARTBEAT_TIMEOUT", "seconds that a daemon may be silent"},
    {"--interface", "PELTON_INTERFACE", "network interface of the wire between hosts"},
    {"--host-label", "PELTON_HOST_LABEL", "ranks with different ones share no memory"},
    {"--wire", "PELTON_WIRE", "the wire between hosts"},
    {"--schedules", "PELTON_SCHEDULES",
     "file that says which recipe runs a collective between hosts, the same on all ranks"},
    {"--spin", "PELTON_SPIN_US",
     "microseconds that it looks for what its trainer says before it sleeps"},
};

const PlaceFlag* FindPlaceFlag(const std::string& flag) {
  for (const PlaceFlag& place : kPlaceFlags) {
    if (flag == place.flag) return &place;
  }
  return nullptr;
}

absl::StatusOr<std::string> ReadText(const std::string& path, const char* flag) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(flag, " ", path, ": cannot be read"));
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// Words of --flags-file's lines: "--rank 3" or "--rank=3".
absl::StatusOr<std::vector<std::string>> ReadFlags(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path, "--flags-file"));
  std::vector<std::string> words;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
      words.emplace_back(word);
    }
  }
  return words;
}

absl::Status TakeSeconds(const char* flag, const std::string& text, absl::Duration* target) {
  const std::optional<absl::Duration> seconds = ParseSeconds(text);
  if (!seconds.has_value() || *seconds == absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " '", text, "': must be a number of seconds above 0"));
  }
  *target = *seconds;
  return absl::OkStatus();
}

absl::Status TakeGrace(const std::string& text, absl::Duration* target) {
  const std::optional<absl::Duration> seconds = ParseSeconds(text);
  if (!seconds.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trainer-grace '", text, "': must be a number of seconds, or 0 for none"));
  }
  *target = *seconds;
  return absl::OkStatus();
}

absl::Status TakeTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadText(path, "--token-file"));
  setenv("PELTON_JOB_TOKEN", std::string(absl::StripAsciiWhitespace(text)).c_str(), 1);
  return absl::OkStatus();
}

// Threads: one. Owns: what was parsed so far.
class Parser {
 public:
  absl::Status Take(std::vector<std::string> words) {
    for (size_t at = 0; at < words.size(); ++at) {
      std::string flag = words[at];
      if (TakeSwitch(flag)) continue;
      std::string value;
      if (const size_t equals = flag.find('='); equals != std::string::npos) {
        value = flag.substr(equals + 1);
        flag.resize(equals);
      } else if (at + 1 < words.size()) {
        value = words[++at];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("'", flag, "': no such flag, or its value is missing; see --help"));
      }
      RETURN_IF_ERROR(TakeValue(flag, value));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DaemonOptions> Finish() {
    if (options_.action == DaemonOptions::Action::kHelp) return options_;
    if (options_.socket.empty()) {
      return absl::InvalidArgumentError(
          "--socket: is missing; give the path of the daemon's socket");
    }
    if (options_.action != DaemonOptions::Action::kServe) return options_;
    absl::StatusOr<BackendOptions> backend = OptionsFromEnvironment();
    if (!backend.ok()) return Annotate(backend.status(), "pelton-daemon's place in its job");
    options_.backend = *std::move(backend);
    if (options_.backend.token.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--coordinator '", options_.backend.coordinator_address,
          "': a daemon joins at host:port; a trainer attaches to the daemon's socket"));
    }
    if (!job_.empty()) options_.backend.job = job_;
    return options_;
  }

 private:
  bool TakeSwitch(const std::string& flag) {
    if (flag == "--help" || flag == "-h")
      options_.action = DaemonOptions::Action::kHelp;
    else if (flag == "--status")
      options_.action = DaemonOptions::Action::kStatus;
    else if (flag == "--stop")
      options_.action = DaemonOptions::Action::kStop;
    else if (flag == "--no-heir")
      options_.action = DaemonOptions::Action::kNoHeir;
    else if (flag == "--verbose")
      options_.is_verbose = true;
    else if (flag == "--json")
      options_.as_json = true;
    else if (flag == "--removes-folder")
      options_.removes_folder = true;
    else
      return false;
    return true;
  }

  absl::Status TakeValue(const std::string& flag, const std::string& value) {
    if (const PlaceFlag* place = FindPlaceFlag(flag); place != nullptr) {
      setenv(place->variable, value.c_str(), 1);
      return absl::OkStatus();
    }
    if (flag == "--job")
      job_ = value;
    else if (flag == "--socket")
      options_.socket = value;
    else if (flag == "--idle-timeout")
      return TakeSeconds("--idle-timeout", value, &options_.idle_timeout);
    else if (flag == "--step-grace")
      return TakeSeconds("--step-grace", value, &options_.step_grace);
    else if (flag == "--trainer-grace")
      return TakeGrace(value, &options_.trainer_grace);
    else if (flag == "--token-file")
      return TakeTokenFile(value);
    else if (flag == "--flags-file")
      return TakeFile(value);
    else
      return absl::InvalidArgumentError(absl::StrCat("'", flag, "': no such flag; see --help"));
    return absl::OkStatus();
  }

  absl::Status TakeFile(const std::string& path) {
    if (in_file_) {
      return absl::InvalidArgumentError(
          absl::StrCat("--flags-file ", path, ": such a file may not name another one"));
    }
    in_file_ = true;
    ASSIGN_OR_RETURN(std::vector<std::string> words, ReadFlags(path));
    const absl::Status taken = Annotate(Take(std::move(words)), path);
    in_file_ = false;
    return taken;
  }

  DaemonOptions options_;
  std::string job_;
  bool in_file_ = false;
};

}  // namespace

std::string DaemonHelp() {
  std::string text =
      "usage: pelton-daemon --socket PATH --rank R --world-size N --coordinator HOST:PORT [flags]\n"
      "       pelton-daemon --socket PATH --status | --stop | --no-heir\n\n"
      "Joins a job in the name of one rank and serves that rank's trainer, which attaches with\n"
      "PELTON_COORDINATOR=unix:PATH. The job's token is read from PELTON_JOB_TOKEN or "
      "--token-file.\n\n"
      "  --socket PATH        where the trainer attaches; its folder is this user's alone\n"
      "  --job NAME           the job's name (default: default)\n"
      "  --token-file FILE    holds the job's token\n"
      "  --flags-file FILE    holds more flags, # for comments\n"
      "  --idle-timeout S     seconds without a trainer after which it ends (default: 60)\n"
      "  --step-grace S       seconds that the step under way has when it is told to end "
      "(default: 5)\n"
      "  --trainer-grace S    seconds that the other ranks wait for another trainer in the place "
      "of "
      "one\n"
      "                       that has died (default: 60; 0: they end at once)\n"
      "  --removes-folder     remove the socket's folder at the end, unless another daemon is "
      "left\n"
      "  --verbose            tell also who attaches and leaves\n"
      "  --status             print what the daemon, or the rank, at PATH does\n"
      "  --json               print it as JSON\n"
      "  --stop               have the daemon at PATH end in good order\n"
      "  --no-heir            tell it that nobody starts another trainer in its trainer's place\n";
  for (const PlaceFlag& place : kPlaceFlags) {
    absl::StrAppend(&text, "  ", place.flag, ": ", place.meaning, " (or ", place.variable, ")\n");
  }
  return text;
}

absl::StatusOr<DaemonOptions> ParseDaemonOptions(std::vector<std::string> words) {
  Parser parser;
  RETURN_IF_ERROR(parser.Take(std::move(words)));
  return parser.Finish();
}

}  // namespace pelton
