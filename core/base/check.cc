#include "core/base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace pelton::internal {

CheckFailure::CheckFailure(const char* file, int line, const char* condition) {
  stream_ << file << ":" << line << ": check failed: " << condition << " ";
}

CheckFailure::~CheckFailure() {
  const std::string text = stream_.str();
  std::fprintf(stderr, "%s\n", text.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace pelton::internal

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
