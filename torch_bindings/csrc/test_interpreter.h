// Python within a test, as long as the process lives.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TEST_INTERPRETER_H_
#define PELTON_TORCH_BINDINGS_CSRC_TEST_INTERPRETER_H_

#include <pybind11/embed.h>

#include <optional>

#include "gtest/gtest.h"

namespace pelton::torch_bindings {

// Starts Python before the first test. No thread holds the GIL afterwards, as while a trainer's
// thread is in the runtime.
// Threads: the main thread. Owns: the interpreter.
class [[gnu::visibility("hidden")]] TestInterpreter final : public ::testing::Environment {
 public:
  void SetUp() override {
    pybind11::initialize_interpreter();
    unlocked_.emplace();
  }
  void TearDown() override {
    unlocked_.reset();
    pybind11::finalize_interpreter();
  }

 private:
  std::optional<pybind11::gil_scoped_release> unlocked_;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_TEST_INTERPRETER_H_
