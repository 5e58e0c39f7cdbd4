#include "core/base/log.h"

#include <atomic>
#include <cstdio>

namespace pelton {
namespace {

void WriteToStandardError(LogLevel level, absl::string_view line) {
  if (level < LogLevel::kWarning) return;
  std::fprintf(stderr, "pelton: %.*s\n", static_cast<int>(line.size()), line.data());
}

std::atomic<LogSink> current_sink{&WriteToStandardError};

}  // namespace

void SetLogSink(LogSink sink) {
  current_sink.store(sink == nullptr ? &WriteToStandardError : sink);
}

void Log(LogLevel level, absl::string_view line) { current_sink.load()(level, line); }

}  // namespace pelton
