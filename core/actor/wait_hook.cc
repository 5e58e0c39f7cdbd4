#include "core/actor/wait_hook.h"

#include <pthread.h>

#include <utility>

#include "absl/time/time.h"
#include "core/base/check.h"

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

namespace {

// Sets a flag when it goes, so that a body which does not return has ended as well.
// Threads: one. Owns: its share of the flag.
class EndMark {
 public:
  explicit EndMark(std::shared_ptr<bool> flag) : flag_(std::move(flag)) {}
  ~EndMark() { *flag_ = true; }
  EndMark(const EndMark&) = delete;
  EndMark& operator=(const EndMark&) = delete;

 private:
  const std::shared_ptr<bool> flag_;
};

}  // namespace

SideThread::SideThread(std::function<void()> body, const std::string& name) {
  if (WaitHook* const hook = WaitHook::Current()) {
    auto ended = std::make_shared<bool>(false);
    const bool is_run = hook->Run([ended, body] {
      const EndMark mark(ended);
      body();
    });
    if (is_run) {
      has_ended_ = std::move(ended);
      return;
    }
  }
  thread_ = std::thread(std::move(body));
  if (!name.empty()) pthread_setname_np(thread_.native_handle(), name.substr(0, 15).c_str());
}

void SideThread::Join() {
  if (thread_.joinable()) return thread_.join();
  WaitHook* const hook = WaitHook::Current();
  PELTON_CHECK(hook != nullptr) << "a thread of a simulation is joined outside of it";
  hook->WaitUntil([this] { return *has_ended_; }, absl::InfiniteFuture());
  has_ended_.reset();
}

}  // namespace pelton
