// A thread that a simulation can run in its own.
#ifndef PELTON_CORE_ACTOR_SIDE_THREAD_H_
#define PELTON_CORE_ACTOR_SIDE_THREAD_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace pelton {

// As std::thread, for code that blocks in calls of the kernel or of another library, so that it can
// be no actor. Where the thread that makes it is a simulation's, so is this one.
// Threads: the one that made it. Owns: the thread, which must be joined before this goes.
class SideThread {
 public:
  SideThread() = default;
  // `name` is shown by debuggers, its first 15 characters; "": that of the thread that makes it.
  explicit SideThread(std::function<void()> body, const std::string& name = "");

  bool joinable() const { return thread_.joinable() || is_simulated(); }
  bool is_simulated() const { return has_ended_ != nullptr; }
  // Blocks: until the body has returned.
  void Join();

 private:
  std::thread thread_;
  // Of a simulated one; null else. Shared: the body may outlast this in a simulation that ends.
  std::shared_ptr<bool> has_ended_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SIDE_THREAD_H_
