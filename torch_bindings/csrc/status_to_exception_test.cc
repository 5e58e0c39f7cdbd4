// As which exceptions statuses reach Python, by whatever way.
#include "torch_bindings/csrc/status_to_exception.h"

#include <pybind11/embed.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <csignal>
#include <functional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "core/base/long_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/signals.h"
#include "torch_bindings/csrc/test_interpreter.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;

// In the place of Python's own module: an exception's type says its code.
constexpr char kErrors[] = R"(
import sys, types
errors = types.ModuleType("pelton.errors")
kinds = [type(f"Code{code}", (RuntimeError,), {}) for code in range(17)]
errors.from_status = lambda code, text: kinds[code](text)
sys.modules["pelton"] = types.ModuleType("pelton")
sys.modules["pelton.errors"] = errors
)";

// Threads: the main one. Owns: the interpreter, as its base does.
class Environment final : public ::testing::Environment {
 public:
  void SetUp() override {
    interpreter_.SetUp();
    const py::gil_scoped_acquire locked;
    py::exec(kErrors);
    RegisterStatusTranslator();
    HearSignals();
  }
  void TearDown() override { interpreter_.TearDown(); }

 private:
  TestInterpreter interpreter_;
};

[[maybe_unused]] const auto* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new Environment);

// "<type>: <text>" of what Python's caller of `body` gets. With the GIL.
std::string RaisedIn(std::function<void()> body) {
  try {
    py::cpp_function(std::move(body))();
  } catch (const py::error_already_set& error) {
    return error.type().attr("__name__").cast<std::string>() + ": " +
           py::str(error.value()).cast<std::string>();
  }
  return "none";
}

TEST(StatusToExceptionTest, EachCodeIsATypeOfItsOwn) {
  const py::gil_scoped_acquire locked;
  for (int code = 1; code < 17; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "rank 1 has died");
    EXPECT_EQ(RaisedIn([&] { ThrowStatus(status); }),
              "Code" + std::to_string(code) + ": rank 1 has died");
  }
}

TEST(StatusToExceptionTest, ATextThatIsNoUtf8KeepsItsType) {
  const py::gil_scoped_acquire locked;
  EXPECT_EQ(RaisedIn([] { ThrowStatus(absl::NotFoundError("no file a\xe9\x95")); }),
            "Code5: no file a\xef\xbf\xbd");
}

TEST(StatusToExceptionTest, AnEngineThatKnowsPyTorchsErrorsAsksForTheTypeLater) {
  PyObject* type = nullptr;
  std::string text;
  // Without the GIL, on a thread of which Python knows nothing.
  std::thread([&] {
    try {
      ThrowStatus(absl::UnavailableError("rank 1 has died"));
    } catch (torch::PyTorchError& error) {
      type = error.python_type();
      text = error.what();
    }
  }).join();
  EXPECT_EQ(text, "rank 1 has died");
  const py::gil_scoped_acquire locked;
  EXPECT_EQ(py::reinterpret_borrow<py::object>(type).attr("__name__").cast<std::string>(),
            "Code14");
}

TEST(StatusToExceptionTest, WhatASignalsHandlerRaisedComesInPlaceOfItsInterrupt) {
  const py::gil_scoped_acquire locked;
  const auto wait = [] {
    const py::gil_scoped_release unlocked;
    std::raise(SIGINT);
    absl::Status status = CheckInterrupt();
    while (status.ok()) status = CheckInterrupt();
    ThrowStatus(status);
  };
  EXPECT_EQ(RaisedIn(wait), "KeyboardInterrupt: ");
  EXPECT_EQ(RaisedIn(wait), "KeyboardInterrupt: ") << "the next one, too";
}

}  // namespace
}  // namespace pelton::torch_bindings
