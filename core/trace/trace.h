// Spans and counters of what the runtime does: recording only.
#ifndef PELTON_CORE_TRACE_TRACE_H_
#define PELTON_CORE_TRACE_TRACE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace pelton {

// A profiler that is shown ranges of time as they begin and end: looks at a model's rounds while it
// follows the thread that begins them. Threads: any. Owns: what its subclass says.
class RangeViewer {
 public:
  virtual ~RangeViewer() = default;
  // Looks if anybody is shown what the calling thread does; Leave looks no longer. Units: some
  // nanoseconds where nobody is.
  virtual void Follow() = 0;
  virtual void Leave() = 0;
  // Whether anybody looks: asked before a name is made, so that nobody pays for one in vain.
  virtual bool is_looking() const = 0;
  // Begins a range. The answer ends it, on any thread; null: nobody looks any more. Blocks: never.
  virtual absl::AnyInvocable<void()> Begin(std::string name) = 0;
};

// Copies of the names that events are recorded under.
// A set of strings that only grows: each name is copied when it is first met, and its copy keeps
// its address for as long as the set lives. Its size is bounded, because a caller that made a new
// name for every event would fill the memory: a name that finds no place any more is
// kFurtherNames. Only the first meeting of a name allocates.
// Threads: any; none waits for another. Owns: the copies.
class TraceNames {
 public:
  static constexpr size_t kCapacity = 1024;  // a power of two
  static constexpr std::string_view kFurtherNames = "(further names)";

  TraceNames() = default;
  ~TraceNames();
  TraceNames(const TraceNames&) = delete;
  TraceNames& operator=(const TraceNames&) = delete;

  // The copy of `name`. Blocks: never.
  const std::string& Keep(std::string_view name);

 private:
  const std::string further_{kFurtherNames};
  std::array<std::atomic<const std::string*>, kCapacity> places_{};
};

enum class TraceKind : uint8_t { kSpan, kCounter };

// One record. A tracer keeps a copy of `name`, and the events of its snapshot refer to that.
struct TraceEvent {
  std::string_view name;
  TraceKind kind = TraceKind::kSpan;
  int32_t bucket = -1;
  uint64_t round = 0;
  int64_t begin_ns = 0;     // of the machine's monotonic clock
  int64_t duration_ns = 0;  // of a span
  int64_t value = 0;        // of a counter
  uint64_t thread = 0;
};

// A ring of the last events. While off, recording costs one relaxed load.
// Threads: any. Owns: its ring, and the names of all events (of most of them, see TraceNames).
class Tracer {
 public:
  // `capacity` is rounded up to a power of two. Units: events.
  explicit Tracer(size_t capacity);
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  // The process's own, off at first.
  static Tracer& Get();

  void Enable(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // Keeps `event` in place of the oldest one; what its name refers to may go at once. Blocks:
  // never; an event is dropped when its writer has been overtaken by a whole ring.
  void Record(const TraceEvent& event);
  void Count(std::string_view name, int64_t value, int32_t bucket = -1, uint64_t round = 0) {
    if (on()) RecordCount(name, value, bucket, round);
  }

  // Those in the ring, oldest first; events being written are left out. Their names live as long as
  // the tracer.
  std::vector<TraceEvent> Snapshot() const;
  // Recorded in all, kept or not.
  uint64_t recorded() const { return next_.load(std::memory_order_relaxed); }

  static int64_t NowNanos();

 private:
  static constexpr size_t kWords = 6;
  // A sequence lock of words: odd while being written.
  struct alignas(64) Entry {
    std::atomic<uint64_t> sequence{0};
    std::array<std::atomic<uint64_t>, kWords> words{};
  };

  void RecordCount(std::string_view name, int64_t value, int32_t bucket, uint64_t round);

  std::atomic<bool> on_{false};
  TraceNames names_;
  const uint64_t mask_;
  std::unique_ptr<Entry[]> entries_;
  alignas(64) std::atomic<uint64_t> next_{0};
};

// Records the time from its construction to its end, which `name` has to outlive.
// Threads: one. Owns: nothing.
class TraceSpan {
 public:
  explicit TraceSpan(std::string_view name, int32_t bucket = -1, uint64_t round = 0)
      : name_(name), bucket_(bucket), round_(round) {
    if (Tracer::Get().on()) begin_ns_ = Tracer::NowNanos();
  }
  ~TraceSpan() {
    if (begin_ns_ != 0) End();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void End();

  std::string_view name_;
  int32_t bucket_;
  uint64_t round_;
  int64_t begin_ns_ = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_TRACE_TRACE_H_
