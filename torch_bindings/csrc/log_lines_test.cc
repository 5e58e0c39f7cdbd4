// How lines reach Python from threads with and without its lock.
#include "torch_bindings/csrc/log_lines.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_interpreter.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Line = std::pair<int, std::string>;

[[maybe_unused]] const auto* const kInterpreter =
    ::testing::AddGlobalTestEnvironment(new TestInterpreter);

// Threads: the test's, which holds the GIL. Owns: the lines that have arrived.
class LogLinesTest : public ::testing::Test {
 protected:
  LogLinesTest() {
    SetPythonLogSink(py::cpp_function([lines = lines_](int level, std::string text) {
      lines->emplace_back(level, std::move(text));
      if (lines->back().second == "raises") throw py::value_error("the sink's own");
    }));
  }
  ~LogLinesTest() override { SetPythonLogSink(py::none()); }

  static void LogOnAnotherThread(LogLevel level, const std::string& text) {
    std::thread([&] { Log(level, text); }).join();
  }

  const py::gil_scoped_acquire locked_;
  const std::shared_ptr<std::vector<Line>> lines_ = std::make_shared<std::vector<Line>>();
};

TEST_F(LogLinesTest, ALineOfAThreadWithTheLockArrivesAtOnce) {
  Log(LogLevel::kWarning, "rank 1 waits");
  EXPECT_THAT(*lines_, ElementsAre(Pair(30, "rank 1 waits")));
}

TEST_F(LogLinesTest, AThreadWithoutTheLockWaitsForNobodyAndItsLinesComeInOrder) {
  LogOnAnotherThread(LogLevel::kInfo, "first");  // it ends although the lock is held here
  LogOnAnotherThread(LogLevel::kError, "second");
  SetPythonLogSink(py::none());
  EXPECT_THAT(*lines_, ElementsAre(Pair(20, "first"), Pair(40, "second")));
}

TEST_F(LogLinesTest, AThreadsTextMayGoOnceItHasLogged) {
  {
    std::string text(100, 'x');
    LogOnAnotherThread(LogLevel::kInfo, text);
    text.assign(100, 'y');
  }
  SetPythonLogSink(py::none());
  EXPECT_THAT(*lines_, ElementsAre(Pair(20, std::string(100, 'x'))));
}

TEST_F(LogLinesTest, WithoutASinkLinesGoToStandardErrorAgain) {
  SetPythonLogSink(py::none());
  ::testing::internal::CaptureStderr();
  Log(LogLevel::kWarning, "of this thread");
  LogOnAnotherThread(LogLevel::kError, "of another");
  const std::string standard_error = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(standard_error, HasSubstr("of this thread"));
  EXPECT_THAT(standard_error, HasSubstr("of another"));
  EXPECT_THAT(*lines_, IsEmpty());
  SetPythonLogSink(py::none());
}

TEST_F(LogLinesTest, ASinkThatRaisesIsToldOfAndGetsTheNextLine) {
  py::list unraisable;
  py::module_::import("sys").attr("unraisablehook") =
      py::cpp_function([&unraisable](const py::object& what) {
        unraisable.append(py::str(what.attr("exc_value")));
      });
  Log(LogLevel::kInfo, "raises");
  EXPECT_EQ(PyErr_Occurred(), nullptr);
  LogOnAnotherThread(LogLevel::kInfo, "raises");
  LogOnAnotherThread(LogLevel::kInfo, "next");
  SetPythonLogSink(py::none());
  EXPECT_THAT(*lines_, ElementsAre(Pair(20, "raises"), Pair(20, "raises"), Pair(20, "next")));
  EXPECT_EQ(unraisable.cast<std::vector<std::string>>(),
            std::vector<std::string>(2, "the sink's own"));
  py::module_::import("sys").attr("unraisablehook") =
      py::module_::import("sys").attr("__unraisablehook__");
}

}  // namespace
}  // namespace pelton::torch_bindings
