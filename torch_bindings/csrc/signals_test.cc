// Python's signal handlers in the waits of its main thread.
#include "torch_bindings/csrc/signals.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <csignal>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/long_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_interpreter.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using ::testing::HasSubstr;

[[maybe_unused]] const auto* const kInterpreter =
    ::testing::AddGlobalTestEnvironment(new TestInterpreter);

// A wait's look at signals, which asks once in kInterruptInterval: until it ends by an error, or it
// has asked twice.
absl::Status Wait() {
  const absl::Time until = absl::Now() + 3 * kInterruptInterval;
  absl::Status status = CheckInterrupt();
  while (status.ok() && absl::Now() < until) status = CheckInterrupt();
  return status;
}

// Threads: the main one, without the GIL. Owns: a handler of SIGUSR1.
class SignalsTest : public ::testing::Test {
 protected:
  SignalsTest() {
    const py::gil_scoped_acquire locked;
    HearSignals();
  }
  ~SignalsTest() override { SetInterruptCheck(nullptr); }

  static void Handle(const py::cpp_function& handler) {
    py::module_::import("signal").attr("signal")(static_cast<int>(SIGUSR1), handler);
  }
  // What Python is thrown, by name; "none": nothing.
  static std::string RaisedBy(const absl::Status& status) {
    try {
      ThrowIfRaisedBySignal(status);
    } catch (python_error& error) {
      const py::gil_scoped_acquire locked;
      return reinterpret_cast<PyTypeObject*>(error.type)->tp_name;
    }
    return "none";
  }
};

TEST_F(SignalsTest, AHandlerThatReturnsRunsOnceAndLetsTheWaitGoOn) {
  int calls = 0;
  bool may_call = true;
  {
    const py::gil_scoped_acquire locked;
    Handle(py::cpp_function([&](const py::object&, const py::object&) {
      ++calls;
      may_call = CheckNotInHandler().ok();
    }));
  }
  std::raise(SIGUSR1);
  EXPECT_EQ(Wait(), absl::OkStatus());
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(may_call) << "a call would wait for the wait that it is in";
  EXPECT_TRUE(CheckNotInHandler().ok()) << "the handler has returned";
}

TEST_F(SignalsTest, WhatAHandlerRaisesEndsTheWaitAndIsThrownOnce) {
  {
    const py::gil_scoped_acquire locked;
    Handle(py::cpp_function(
        [](const py::object&, const py::object&) { throw py::key_error("the user's"); }));
  }
  std::raise(SIGUSR1);
  const absl::Status status = Wait();
  EXPECT_TRUE(IsInterrupted(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("interrupted by a signal (KeyError)"));
  EXPECT_TRUE(IsInterrupted(Wait())) << "until it is thrown, every wait ends by it";
  EXPECT_EQ(RaisedBy(absl::UnavailableError("rank 1 has died")), "none");
  EXPECT_EQ(RaisedBy(absl::OkStatus()), "none");
  EXPECT_EQ(RaisedBy(status), "KeyError");
  EXPECT_EQ(RaisedBy(status), "none") << "it has been thrown";
  EXPECT_EQ(Wait(), absl::OkStatus());
}

TEST_F(SignalsTest, OnlyThePythonsMainThreadHandlesAndThrows) {
  int calls = 0;
  {
    const py::gil_scoped_acquire locked;
    Handle(py::cpp_function([&](const py::object&, const py::object&) {
      ++calls;
      throw py::key_error("the user's");
    }));
  }
  std::raise(SIGUSR1);
  std::thread([] { EXPECT_EQ(Wait(), absl::OkStatus()); }).join();
  EXPECT_EQ(calls, 0);
  const absl::Status status = Wait();
  std::thread([&] {
    EXPECT_EQ(Wait(), absl::OkStatus()) << "what was raised ends waits of the main thread";
    EXPECT_EQ(RaisedBy(status), "none");
  }).join();
  EXPECT_EQ(RaisedBy(status), "KeyError");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace pelton::torch_bindings
