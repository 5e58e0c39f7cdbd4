#include "core/actor/wait_hook.h"

#include <utility>

namespace pelton {
namespace {

thread_local WaitHook* current_hook = nullptr;

}  // namespace

WaitHook* WaitHook::Current() { return current_hook; }
WaitHook* WaitHook::Install(WaitHook* hook) { return std::exchange(current_hook, hook); }

const Clock& WaitClock() { return current_hook != nullptr ? current_hook->clock() : Clock::Real(); }

}  // namespace pelton
