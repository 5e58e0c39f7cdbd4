#include "backend/trace_file.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(TraceFileTest, WritesWhatWasRecordedWhileItLived) {
  const std::string prefix = ::testing::TempDir() + "trace";
  Tracer tracer(64);
  tracer.Count("too early", 1);
  {
    const TraceFile file(prefix, Rank(3), tracer);
    tracer.Count("bucket ready", 1, 5, 7);
    TraceEvent span;
    span.name = "wait round";
    span.begin_ns = 86'400'123'456'789;  // of a machine that has run for a day
    span.duration_ns = 500'020;
    tracer.Record(span);
  }
  tracer.Count("too late", 1);
  std::ifstream file(prefix + ".rank3.json");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), StartsWith("[\n{\"name\":\"bucket ready\",\"ph\":\"C\",\"pid\":3,"));
  EXPECT_THAT(text.str(), HasSubstr(R"("args":{"bucket":5,"round":7,"value":1}},)"));
  EXPECT_THAT(text.str(), HasSubstr(R"("ts":86400123456.789,"dur":500.020,)"));
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("too ")));
}

TEST(TraceFileTest, EscapesNames) {
  const std::string prefix = ::testing::TempDir() + "escaped";
  Tracer tracer(64);
  {
    const TraceFile file(prefix, Rank(0), tracer);
    tracer.Count("a \"b\"\\\n", 1);
  }
  std::ifstream file(prefix + ".rank0.json");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(R"({"name":"a \"b\"\\\u000a","ph")"));
}

}  // namespace
}  // namespace pelton
