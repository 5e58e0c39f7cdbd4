#include "torch_bindings/csrc/profiler_range.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>

#include <string_view>
#include <utility>

namespace pelton::torch_bindings {
namespace {

// Threads: one at a time. Owns: the name, which the event borrows.
struct Record {
  explicit Record(at::StepCallbacks callbacks) : function(std::move(callbacks)) {}

  std::string name;
  at::RecordFunction function;
};

}  // namespace

bool IsProfiled() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

absl::AnyInvocable<void()> BeginProfilerRange(std::string name,
                                              const std::vector<at::Tensor>& inputs) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) return nullptr;
  auto record = std::make_unique<Record>(*std::move(callbacks));
  record->name = std::move(name);
  record->function._setAsync();  // another thread may end it
  const std::vector<c10::IValue> values(inputs.begin(), inputs.end());
  record->function.before(std::string_view(record->name), &values);
  return [record = std::move(record), state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard guard(state);
    record->function.end();
  };
}

ProfiledRounds::ProfiledRounds() = default;
ProfiledRounds::~ProfiledRounds() = default;

void ProfiledRounds::Follow() {
  if (!IsProfiled()) return Leave();
  state_.store(std::make_shared<const at::ThreadLocalState>());
  is_looking_.store(true, std::memory_order_relaxed);
}

void ProfiledRounds::Leave() {
  if (!is_looking()) return;
  is_looking_.store(false, std::memory_order_relaxed);
  state_.store(nullptr);
}

absl::AnyInvocable<void()> ProfiledRounds::Begin(std::string name) {
  const std::shared_ptr<const at::ThreadLocalState> state = state_.load();
  if (state == nullptr) return nullptr;
  const at::ThreadLocalStateGuard guard(*state);
  return BeginProfilerRange(std::move(name));
}

}  // namespace pelton::torch_bindings
