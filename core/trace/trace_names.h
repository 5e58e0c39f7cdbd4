// Copies of the names that events are recorded under.
#ifndef PELTON_CORE_TRACE_TRACE_NAMES_H_
#define PELTON_CORE_TRACE_TRACE_NAMES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

namespace pelton {

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

}  // namespace pelton

#endif  // PELTON_CORE_TRACE_TRACE_NAMES_H_
