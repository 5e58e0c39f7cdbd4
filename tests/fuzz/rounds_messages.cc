// The questions of a trainer about one model, and the answers of its daemon.
#include "backend/link/rounds_messages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/check.h"
#include "core/plan/plan.h"
#include "proto/link_rounds.pb.h"
#include "tests/fuzz/input.h"

namespace pelton {
namespace {

constexpr size_t kSlots = 8;

// With the bytes of a chunk, and room for more that nothing was ever written to: a trainer may
// claim as much as it likes.
Descriptor MemoryOf(fuzz::Input& input) {
  Descriptor memory(memfd_create("pelton-states", MFD_CLOEXEC));
  PELTON_CHECK(memory.is_open());
  const int exponent = input.TakeByte() % 63;
  const absl::string_view bytes = input.TakeChunk();
  PELTON_CHECK(write(memory.get(), bytes.data(), bytes.size()) ==
               static_cast<ssize_t>(bytes.size()));
  (void)!ftruncate(memory.get(), static_cast<off_t>(bytes.size() + (int64_t{1} << exponent) - 1));
  return memory;
}

void RunStates(const link::LinkStates& states, int memory) {
  const absl::StatusOr<std::vector<SlotState>> copies = FromMemory(states, memory, kSlots);
  if (!copies.ok()) return;
  const absl::StatusOr<StatesInMemory> again = ToMemory(*copies);
  PELTON_CHECK_OK(again.status());
  const auto twice = FromMemory(again->states, again->memory.get(), kSlots);
  PELTON_CHECK_OK(twice.status());
  PELTON_CHECK(twice->size() == copies->size());
}

void RunModel(const link::MakeModel& message) {
  absl::StatusOr<ModelQuestion> question = FromMessage(message);
  if (!question.ok()) return;
  const link::MakeModel again = ToMessage(question->options, question->tensors);
  PELTON_CHECK(again.tensors_size() == message.tensors_size());
  PELTON_CHECK_OK(FromMessage(again).status());
  PlanOptions options;
  options.bucket_size_bytes = question->options.bucket_size_bytes;
  options.buckets = question->options.buckets;
  const absl::StatusOr<Plan> plan = Plan::Build(std::move(question->tensors), options);
  if (plan.ok()) (void)plan->Hash();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  const bool is_answer = input.TakeByte() % 2 == 1;
  const Descriptor memory = MemoryOf(input);
  const std::string message(input.TakeRest());
  if (is_answer) {
    link::RoundsAnswer answer;
    if (!answer.ParseFromString(message)) return 0;
    RunStates(answer.states(), memory.get());
    (void)FromMessage(answer.status());
    return 0;
  }
  link::RoundsQuestion question;
  if (!question.ParseFromString(message)) return 0;
  PELTON_CHECK(DurationOf(question.timeout_ns()) >= absl::ZeroDuration());
  RunStates(question.load_states(), memory.get());
  RunModel(question.make());
  (void)FromMessage(question.abort());
  return 0;
}

}  // namespace pelton
