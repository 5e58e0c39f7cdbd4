// The lines that the runtime has for people: every one of them goes through here.
#ifndef PELTON_CORE_BASE_LOG_H_
#define PELTON_CORE_BASE_LOG_H_

#include "absl/strings/string_view.h"

namespace pelton {

// The numbers are those of Python's logging.
enum class LogLevel { kInfo = 20, kWarning = 30, kError = 40 };

// Takes one line without its end. Called by any thread, also by several at once.
using LogSink = void (*)(LogLevel level, absl::string_view line);

// Has every line go to `sink`; null, as at first: warnings and errors to standard error.
// Threads: any.
void SetLogSink(LogSink sink);

// Threads: any; not with a lock that the sink could need, so not within an actor's turn that others
// wait for in Python.
void Log(LogLevel level, absl::string_view line);

}  // namespace pelton

#endif  // PELTON_CORE_BASE_LOG_H_
