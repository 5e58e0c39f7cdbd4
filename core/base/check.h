// What this process says to people: PELTON_CHECK, which ends it when an invariant of our own code
// is broken (bad input is a Status instead), and the lines of the log.
#ifndef PELTON_CORE_BASE_CHECK_H_
#define PELTON_CORE_BASE_CHECK_H_

#include <sstream>

#include "absl/base/optimization.h"
#include "absl/strings/string_view.h"

namespace pelton::internal {

// Collects the message of a failed check; its destructor prints it and aborts.
// Threads: used by one expression. Owns: its text.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Lets the ternary below have type void on both sides.
struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace pelton::internal

#define PELTON_CHECK(condition)     \
  ABSL_PREDICT_TRUE(condition)      \
  ? (void)0                         \
  : ::pelton::internal::Voidify() & \
          ::pelton::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

// For absl::Status; prints it on failure.
#define PELTON_CHECK_OK(expression)                                                           \
  for (const ::absl::Status pelton_check_status_ = (expression); !pelton_check_status_.ok();) \
  ::pelton::internal::CheckFailure(__FILE__, __LINE__, #expression).stream() << pelton_check_status_

namespace pelton {

// The numbers are those of Python's logging.
enum class LogLevel { kInfo = 20, kWarning = 30, kError = 40 };

// Takes one line without its end; every line for people goes through here. Called by any thread,
// also by several at once.
using LogSink = void (*)(LogLevel level, absl::string_view line);

// Has every line go to `sink`; null, as at first: warnings and errors to standard error.
// Threads: any.
void SetLogSink(LogSink sink);

// Threads: any; not with a lock that the sink could need, so not within an actor's turn that others
// wait for in Python.
void Log(LogLevel level, absl::string_view line);

}  // namespace pelton

#endif  // PELTON_CORE_BASE_CHECK_H_
