// PELTON_CHECK: ends the process when an invariant of our own code is broken. Bad input is a Status
// instead.
#ifndef PELTON_CORE_BASE_CHECK_H_
#define PELTON_CORE_BASE_CHECK_H_

#include <sstream>

#include "absl/base/optimization.h"

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

#endif  // PELTON_CORE_BASE_CHECK_H_
