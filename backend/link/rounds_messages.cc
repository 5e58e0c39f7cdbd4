#include "backend/link/rounds_messages.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/page.h"
#include "core/base/limits.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"
#include "core/pipeline/pipeline.h"

namespace pelton {
namespace {

constexpr int32_t kLastCode = static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
constexpr auto kLastScope = static_cast<uint32_t>(StateScope::kPassedOn);

absl::Status StateMemoryError(absl::string_view call) {
  return absl::ResourceExhaustedError(absl::StrCat("state: ", call, ": ", ErrorText(errno)));
}

absl::Status WriteAll(int memory, absl::Span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(memory, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return StateMemoryError("write");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// By a system call, not through a mapping: memory that its owner makes shorter meanwhile gives an
// error then and no signal.
absl::Status ReadAll(int memory, uint64_t offset, absl::Span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(memory, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return StateMemoryError("read");
    if (got == 0) {
      return absl::InvalidArgumentError(
          "state: the memory is shorter than its list of states says; start the trainer and the "
          "daemon from one installation");
    }
    bytes.remove_prefix(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

// That were written, in whole blocks of the kernel: a memory can claim to be larger than all that
// this process may allocate for a copy.
absl::StatusOr<uint64_t> BytesIn(int memory) {
  constexpr uint64_t kBlockBytes = 512;  // of st_blocks, whatever the file system's are
  struct stat file;
  if (fstat(memory, &file) != 0) return StateMemoryError("fstat");
  return std::min(static_cast<uint64_t>(file.st_size),
                  static_cast<uint64_t>(file.st_blocks) * kBlockBytes);
}

absl::StatusOr<TensorSpec> FromMessage(const link::LinkTensor& message) {
  if (message.dtype() >= kDTypeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", message.name(), "': this daemon knows no dtype ", message.dtype(),
                     "; start the trainer and the daemon from one installation"));
  }
  if (message.count() > limits::kMaxPlanBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", message.name(), "': has ",
                                                   message.count(), " elements; at most ",
                                                   limits::kMaxPlanBytes, " can be planned"));
  }
  TensorSpec tensor;
  tensor.name = message.name();
  tensor.dtype = static_cast<DType>(message.dtype());
  tensor.count = message.count();
  tensor.columns = message.columns();
  tensor.layout = message.layout();
  return tensor;
}

absl::Status CheckNumbers(const link::MakeModel& message) {
  if (message.version() != kLinkVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model '", message.name(), "': the trainer speaks version ", message.version(),
        " of the link, the daemon version ", kLinkVersion, "; start both from one installation"));
  }
  if (message.first_round() == 0) {
    return absl::InvalidArgumentError("first_round is 0; rounds are numbered from 1");
  }
  if (message.tensors_size() == 0 ||
      static_cast<size_t>(message.tensors_size()) > limits::kMaxTensorsPerPlan) {
    return absl::InvalidArgumentError(absl::StrCat("model '", message.name(), "' has ",
                                                   message.tensors_size(), " tensors; 1 to ",
                                                   limits::kMaxTensorsPerPlan, " can be planned"));
  }
  return absl::OkStatus();
}

}  // namespace

link::LinkStatus ToMessage(const absl::Status& status) {
  link::LinkStatus message;
  message.set_code(static_cast<int32_t>(status.code()));
  message.set_message(std::string(status.message()));
  message.set_interrupted(IsInterrupted(status));
  return message;
}

absl::Status FromMessage(const link::LinkStatus& message) {
  if (message.code() == 0) return absl::OkStatus();
  if (message.interrupted()) return InterruptedError(message.message());
  if (message.code() < 0 || message.code() > kLastCode) {
    return absl::InternalError(
        absl::StrCat("status code ", message.code(), ": ", message.message()));
  }
  return {static_cast<absl::StatusCode>(message.code()), message.message()};
}

int64_t NanosOf(absl::Duration timeout) {
  return absl::ToInt64Nanoseconds(std::max(timeout, absl::ZeroDuration()));  // saturates
}

absl::Duration DurationOf(int64_t nanos) {
  if (nanos == std::numeric_limits<int64_t>::max()) return absl::InfiniteDuration();
  return absl::Nanoseconds(std::max<int64_t>(nanos, 0));
}

link::MakeModel ToMessage(const ModelOptions& options, absl::Span<const TensorSpec> tensors) {
  link::MakeModel message;
  message.set_version(kLinkVersion);
  message.set_name(options.name);
  for (Rank member : options.group.members) message.add_members(member.value());
  message.set_generation(options.group.generation.value());
  message.set_algorithm(options.algorithm);
  for (const auto& [name, value] : options.algorithm_options) {
    (*message.mutable_algorithm_options())[name] = value;
  }
  message.set_bucket_size_bytes(options.bucket_size_bytes);
  message.set_standalone_bytes(options.standalone_bytes);
  for (int32_t bucket : options.buckets) message.add_buckets(bucket);
  message.set_timeout_ns(NanosOf(options.timeout));
  message.set_first_round(options.first_round.value());
  message.set_commits_state(options.commits_state);
  for (const TensorSpec& tensor : tensors) {
    link::LinkTensor& added = *message.add_tensors();
    added.set_name(tensor.name);
    added.set_dtype(static_cast<uint32_t>(tensor.dtype));
    added.set_count(tensor.count);
    added.set_columns(tensor.columns);
    added.set_layout(tensor.layout);
  }
  return message;
}

absl::StatusOr<ModelQuestion> FromMessage(const link::MakeModel& message) {
  RETURN_IF_ERROR(CheckNumbers(message));
  ModelQuestion question;
  ModelOptions& options = question.options;
  options.name = message.name();
  options.group = Group::Of(message.members(), Generation(message.generation()));
  options.algorithm = message.algorithm();
  for (const auto& [name, value] : message.algorithm_options()) {
    options.algorithm_options[name] = value;
  }
  options.bucket_size_bytes = message.bucket_size_bytes();
  options.standalone_bytes = message.standalone_bytes();
  options.buckets.assign(message.buckets().begin(), message.buckets().end());
  options.timeout = DurationOf(message.timeout_ns());
  options.first_round = Round(message.first_round());
  options.commits_state = message.commits_state();
  for (const link::LinkTensor& tensor : message.tensors()) {
    ASSIGN_OR_RETURN(TensorSpec spec, FromMessage(tensor));
    question.tensors.push_back(std::move(spec));
  }
  return question;
}

absl::StatusOr<StatesInMemory> ToMemory(absl::Span<const SlotState> states) {
  StatesInMemory in_memory;
  in_memory.memory = Descriptor(memfd_create("pelton-states", MFD_CLOEXEC));
  if (!in_memory.memory.is_open()) return StateMemoryError("memfd_create");
  for (const SlotState& state : states) {
    link::LinkState& added = *in_memory.states.add_states();
    added.set_key(state.key);
    added.set_slot(state.slot.value());
    added.set_dtype(static_cast<uint32_t>(state.dtype));
    added.set_scope(static_cast<uint32_t>(state.scope));
    added.set_begin_count(state.begin_count);
    added.set_size_bytes(state.bytes.size());
    RETURN_IF_ERROR(WriteAll(in_memory.memory.get(), state.bytes));
  }
  return in_memory;
}

absl::StatusOr<std::vector<SlotState>> FromMemory(const link::LinkStates& states, int memory,
                                                  size_t slot_count) {
  ASSIGN_OR_RETURN(uint64_t left, BytesIn(memory));
  uint64_t offset = 0;
  std::vector<SlotState> copies;
  for (const link::LinkState& state : states.states()) {
    const bool is_known = state.slot() >= 0 && static_cast<size_t>(state.slot()) < slot_count &&
                          state.dtype() < kDTypeCount && state.scope() <= kLastScope;
    if (!is_known || state.size_bytes() > left) {
      return absl::InvalidArgumentError(absl::StrCat(
          "state: '", state.key(), "' of slot ", state.slot(), ", dtype ", state.dtype(),
          ", scope ", state.scope(), ", ", state.size_bytes(), " bytes of ", left));
    }
    SlotState& copy = copies.emplace_back();
    copy.key = state.key();
    copy.slot = SlotId(state.slot());
    copy.dtype = static_cast<DType>(state.dtype());
    copy.scope = static_cast<StateScope>(state.scope());
    copy.begin_count = state.begin_count();
    copy.bytes.resize(state.size_bytes());
    RETURN_IF_ERROR(ReadAll(memory, offset, absl::MakeSpan(copy.bytes)));
    offset += state.size_bytes();
    left -= state.size_bytes();
  }
  return copies;
}

}  // namespace pelton
