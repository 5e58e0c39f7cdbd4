#include "backend/environment.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {
namespace {

constexpr size_t kLeastTokenBytes = 16;

std::string Variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

absl::Status Malformed(const char* name, const std::string& text, const char* wanted) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, "='", text, "' in the environment: must be ", wanted,
                   "; start the program with a launcher, as in: bfrun -np 4 ./program"));
}

absl::StatusOr<int32_t> NumberAtLeast(const char* name, int32_t least) {
  const std::string text = Variable(name);
  int32_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= least) return value;
  return Malformed(name, text, least == 0 ? "a number from 0" : "a number from 1");
}

absl::Status TakeSeconds(const char* name, absl::Duration& target) {
  const std::string text = Variable(name);
  if (text.empty()) return absl::OkStatus();
  const std::optional<absl::Duration> seconds = ParseSeconds(text);
  if (!seconds.has_value() || *seconds == absl::ZeroDuration()) {
    return Malformed(name, text, "a number of seconds above 0");
  }
  target = *seconds;
  return absl::OkStatus();
}

// The same default as in Python: a job joins, and a group opens, within an operation's time.
absl::Status TakeTimes(BackendOptions& options) {
  RETURN_IF_ERROR(TakeSeconds("PELTON_TIMEOUT", options.operation_timeout));
  if (!Variable("PELTON_TIMEOUT").empty()) options.join_timeout = options.operation_timeout;
  RETURN_IF_ERROR(TakeSeconds("PELTON_JOIN_TIMEOUT", options.join_timeout));
  return TakeSeconds("PELTON_HEARTBEAT_TIMEOUT", options.heartbeat_timeout);
}

bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "127.") || absl::StartsWith(address, "[::1]:") ||
         absl::StartsWith(address, "localhost:");
}

absl::Status TakeMeetingPlace(BackendOptions& options) {
  options.coordinator_address = Variable("PELTON_COORDINATOR");
  if (absl::StartsWith(options.coordinator_address, "unix:")) {
    options.serves_coordinator = false;  // the daemon there has all else
    return absl::OkStatus();
  }
  if (!absl::StrContains(options.coordinator_address, ':')) {
    return Malformed("PELTON_COORDINATOR", options.coordinator_address, "host:port");
  }
  options.token = Variable("PELTON_JOB_TOKEN");
  if (options.token.size() < kLeastTokenBytes) {  // the text is a secret, however short
    return Malformed("PELTON_JOB_TOKEN", "...", "at least 16 letters and digits");
  }
  options.tls = {.ca_path = Variable("PELTON_TLS_CA"),
                 .certificate_path = Variable("PELTON_TLS_CERT"),
                 .key_path = Variable("PELTON_TLS_KEY"),
                 .server_name = Variable("PELTON_TLS_NAME")};
  const bool is_protected = options.tls.enabled() || Variable("PELTON_INSECURE") == "1";
  if (is_protected || IsLoopback(options.coordinator_address)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "PELTON_COORDINATOR=", options.coordinator_address,
      ": the job's token would cross the network in clear; set PELTON_TLS_CA, PELTON_TLS_CERT and "
      "PELTON_TLS_KEY, or PELTON_INSECURE=1 where you trust everybody on that network"));
}

// Of the daemon where there is one.
absl::Status TakeSchedules(BackendOptions& options) {
  const std::string path = Variable("PELTON_SCHEDULES");
  if (path.empty() || options.token.empty()) return absl::OkStatus();
  std::ifstream file(path);
  if (!file) return Malformed("PELTON_SCHEDULES", path, "a file that can be read");
  options.schedules.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  return absl::OkStatus();
}

}  // namespace

std::optional<absl::Duration> ParseSeconds(const std::string& text) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds < 0) return {};
  return absl::Seconds(seconds);
}

absl::StatusOr<BackendOptions> OptionsFromEnvironment() {
  BackendOptions options;
  ASSIGN_OR_RETURN(const int32_t world_size, NumberAtLeast("WORLD_SIZE", 1));
  ASSIGN_OR_RETURN(const int32_t rank, NumberAtLeast("RANK", 0));
  if (rank >= world_size) return Malformed("RANK", absl::StrCat(rank), "below WORLD_SIZE");
  options.rank = Rank(rank);
  options.world_size = WorldSize(world_size);
  options.serves_coordinator = rank == 0;
  RETURN_IF_ERROR(TakeMeetingPlace(options));
  RETURN_IF_ERROR(TakeTimes(options));
  RETURN_IF_ERROR(TakeSchedules(options));
  options.interface = Variable("PELTON_INTERFACE");
  options.host_label = Variable("PELTON_HOST_LABEL");
  if (const std::string wire = Variable("PELTON_WIRE"); !wire.empty()) options.wire = wire;
  return options;
}

}  // namespace pelton
