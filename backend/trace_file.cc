#include "backend/trace_file.h"

#include <cstdint>
#include <fstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pelton {
namespace {

// A string of JSON, without its quotation marks. What is no ASCII is left as it is: names are
// UTF-8.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (static_cast<unsigned char>(letter) < 0x20) {
      absl::StrAppend(&escaped, "\\u", absl::Hex(letter, absl::kZeroPad4));
      continue;
    }
    if (letter == '"' || letter == '\\') escaped += '\\';
    escaped += letter;
  }
  return escaped;
}

// With all digits, because a clock has more than six of them within a second.
std::string Microseconds(int64_t nanoseconds) {
  return absl::StrFormat("%d.%03d", nanoseconds / 1000, nanoseconds % 1000);
}

// Times are in microseconds there; "X" is a span, "C" a counter.
std::string LineOf(const TraceEvent& event, Rank rank) {
  const bool is_span = event.kind == TraceKind::kSpan;
  std::string line = absl::StrCat(R"({"name":")", Escaped(event.name), R"(","ph":")",
                                  is_span ? "X" : "C", R"(","pid":)", rank.value(), R"(,"tid":)",
                                  event.thread, R"(,"ts":)", Microseconds(event.begin_ns));
  if (is_span) absl::StrAppend(&line, R"(,"dur":)", Microseconds(event.duration_ns));
  absl::StrAppend(&line, R"(,"args":{"bucket":)", event.bucket, R"(,"round":)", event.round);
  if (!is_span) absl::StrAppend(&line, R"(,"value":)", event.value);
  return absl::StrCat(line, "}}");
}

}  // namespace

TraceFile::TraceFile(const std::string& prefix, Rank rank, Tracer& tracer)
    : path_(absl::StrCat(prefix, ".rank", rank.value(), ".json")), rank_(rank), tracer_(tracer) {
  tracer_.Enable(true);
}

TraceFile::~TraceFile() {
  tracer_.Enable(false);
  std::ofstream file(path_);
  file << "[";
  const char* separator = "\n";
  for (const TraceEvent& event : tracer_.Snapshot()) {
    file << separator << LineOf(event, rank_);
    separator = ",\n";
  }
  file << "\n]\n";
}

}  // namespace pelton
