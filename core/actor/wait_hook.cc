#include "core/actor/wait_hook.h"

#include <utility>

namespace pelton {
namespace {

thread_local WaitHook* current_hook = nullptr;

}  // namespace

WaitHook* WaitHook::Current() { return current_hook; }
bool WaitHook::MayBlock() { return current_hook == nullptr || current_hook->IsOnThread(); }
WaitHook* WaitHook::Install(WaitHook* hook) {
  WaitHook* const previous = std::exchange(current_hook, hook);
  installed_.fetch_add((hook != nullptr ? 1 : 0) - (previous != nullptr ? 1 : 0),
                       std::memory_order_relaxed);
  return previous;
}

const Clock& WaitClock() { return current_hook != nullptr ? current_hook->clock() : Clock::Real(); }

}  // namespace pelton
