// A child process with its standard input and output in the test's hand.
#ifndef PELTON_COMM_CONTROL_SUBPROCESS_TEST_H_
#define PELTON_COMM_CONTROL_SUBPROCESS_TEST_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace pelton {

// Threads: one at a time. Owns: the process, killed and waited for at the end, and its pipes.
class Subprocess {
 public:
  // The program's path and its arguments.
  explicit Subprocess(const std::vector<std::string>& command);
  ~Subprocess();
  Subprocess(const Subprocess&) = delete;
  Subprocess& operator=(const Subprocess&) = delete;

  // The next line of its output, without the end of line; "" at its end or at `deadline`.
  std::string ReadLine(absl::Time deadline);
  void CloseInput();
  void Signal(int number);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int input_ = -1;   // we write
  int output_ = -1;  // we read
  std::string buffered_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_SUBPROCESS_TEST_H_
