#include "torch_bindings/csrc/log_lines.h"

#include <pthread.h>

#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/log.h"
#include "core/base/sync.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

constexpr size_t kMostLines = 1000;  // what comes while nobody takes them is dropped
constexpr absl::Duration kDrainTime = absl::Seconds(1);

struct Line {
  LogLevel level;
  std::string text;
};

// Lines that wait for Python. Threads: any. Owns: the lines; its thread lives as long as the
// process, and so does this.
class Lines {
 public:
  static Lines& Get() {
    static auto* const lines = new Lines;
    return *lines;
  }

  void Push(LogLevel level, absl::string_view text) {
    MutexLock lock(&mutex_);
    if (waiting_.size() >= kMostLines) return;
    waiting_.push_back({level, std::string(text)});
    if (!std::exchange(has_thread_, true)) {
      std::thread thread([this] { Run(); });
      pthread_setname_np(thread.native_handle(), "pelton-log");
      thread.detach();  // ALLOW: it waits for lines until the process ends
    }
    changed_.SignalAll();
  }

  // With the GIL; null: lines that have come since are dropped.
  void SetSink(py::object* sink) { sink_ = sink; }

  // Calls the sink. With the GIL.
  void Tell(LogLevel level, absl::string_view text) {
    if (sink_ == nullptr) return;
    try {
      (*sink_)(static_cast<int>(level), py::str(text.data(), text.size()));
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the logging of a line of Pelton's");
    }
  }

  // Without the GIL, which the lines need.
  void Drain() {
    const absl::Time deadline = Clock::Real().Now() + kDrainTime;
    MutexLock lock(&mutex_);
    while (!waiting_.empty() && Clock::Real().Now() < deadline) {
      changed_.WaitWithDeadline(&mutex_, deadline);
    }
  }

 private:
  [[noreturn]] void Run() {
    while (true) {
      Line line;
      {
        MutexLock lock(&mutex_);
        while (waiting_.empty()) changed_.WaitWithDeadline(&mutex_, absl::InfiniteFuture());
        line = waiting_.front();
      }
      {
        const py::gil_scoped_acquire locked;
        Tell(line.level, line.text);
      }
      MutexLock lock(&mutex_);
      waiting_.pop_front();
      changed_.SignalAll();
    }
  }

  py::object* sink_ = nullptr;  // guarded by the GIL
  Mutex mutex_;
  CondVar changed_;
  std::deque<Line> waiting_ ABSL_GUARDED_BY(mutex_);
  bool has_thread_ ABSL_GUARDED_BY(mutex_) = false;
};

void TellPython(LogLevel level, absl::string_view text) {
  if (IsForkedChild()) return;  // its parent speaks for itself
  if (PyGILState_Check() != 0) {
    Lines::Get().Tell(level, text);
  } else {
    Lines::Get().Push(level, text);
  }
}

}  // namespace

void SetPythonLogSink(py::object sink) {
  if (!sink.is_none()) {
    Lines::Get().SetSink(new py::object(std::move(sink)));  // for ever: a line may be on its way
    SetLogSink(&TellPython);
    return;
  }
  SetLogSink(nullptr);
  if (IsForkedChild()) return;
  {
    const py::gil_scoped_release unlocked;
    Lines::Get().Drain();
  }
  Lines::Get().SetSink(nullptr);
}

}  // namespace pelton::torch_bindings
