// Simulates average consensus and prints a line of JSON: the error, the time and, if asked for, the
// expected error after each round.
//
//   consensus GRAPH[,option=value...] RANKS ROUNDS COUNT LATENCY_US BYTES_PER_SECOND [expected]
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "benchmarks/graphs/consensus_simulation.h"
#include "core/base/status.h"

namespace pelton {
namespace {

void ParseGraph(const std::string& text, ConsensusOptions& options) {
  std::vector<std::string> parts = absl::StrSplit(text, ',');
  options.graph = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    options.graph_options[option.first] = option.second;
  }
}

absl::StatusOr<ConsensusOptions> ParseArguments(int argc, char** argv) {
  ConsensusOptions options;
  int32_t ranks = 0;
  double latency_us = 0;
  const bool is_understood = argc >= 7 && absl::SimpleAtoi(argv[2], &ranks) &&
                             absl::SimpleAtoi(argv[3], &options.rounds) &&
                             absl::SimpleAtoi(argv[4], &options.count) &&
                             absl::SimpleAtod(argv[5], &latency_us) &&
                             absl::SimpleAtod(argv[6], &options.link.bytes_per_second);
  if (!is_understood) {
    return absl::InvalidArgumentError(
        "usage: consensus GRAPH[,option=value...] RANKS ROUNDS COUNT LATENCY_US BYTES_PER_SECOND "
        "[expected]");
  }
  options.ranks = WorldSize(ranks);
  options.link.latency = absl::Microseconds(latency_us);
  ParseGraph(argv[1], options);
  return options;
}

void Print(const ConsensusOptions& options, const ConsensusResult& result) {
  std::vector<std::string> errors;
  std::vector<std::string> expected;
  std::vector<std::string> seconds;
  for (const ConsensusRound& round : result.rounds) {
    errors.push_back(absl::StrCat(round.error));
    expected.push_back(absl::StrCat(round.expected));
    seconds.push_back(absl::StrCat(absl::ToDoubleSeconds(round.time)));
  }
  std::printf(
      R"({"graph": "%s", "ranks": %d, "sent_bytes": %llu, "errors": [%s], "expected": [%s], )"
      R"("seconds": [%s]})"
      "\n",
      options.graph.c_str(), options.ranks.value(),
      static_cast<unsigned long long>(result.sent_bytes), absl::StrJoin(errors, ", ").c_str(),
      absl::StrJoin(expected, ", ").c_str(), absl::StrJoin(seconds, ", ").c_str());
}

absl::Status Main(int argc, char** argv) {
  ASSIGN_OR_RETURN(const ConsensusOptions options, ParseArguments(argc, argv));
  const bool computes_expected = argc > 7 && std::strcmp(argv[7], "expected") == 0;
  ASSIGN_OR_RETURN(const ConsensusResult result, SimulateConsensus(options, computes_expected));
  Print(options, result);
  return absl::OkStatus();
}

}  // namespace
}  // namespace pelton

int main(int argc, char** argv) {
  const absl::Status status = pelton::Main(argc, argv);
  if (!status.ok()) std::fprintf(stderr, "consensus: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
