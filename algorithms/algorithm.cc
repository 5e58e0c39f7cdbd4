#include "algorithms/algorithm.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Algorithm>> MakeAlgorithm(const std::string& name,
                                                         const AlgorithmOptions& options) {
  ASSIGN_OR_RETURN(const AlgorithmRegistry::Entry entry, AlgorithmRegistry::Get().Find(name));
  std::unique_ptr<Algorithm> algorithm = entry.factory();
  RETURN_IF_ERROR(Annotate(algorithm->Configure(options), absl::StrCat("algorithm ", name)));
  return algorithm;
}

absl::StatusOr<Pipeline> MakePipeline(Algorithm& algorithm, const BucketLayout& layout,
                                      const Tiers& tiers) {
  ASSIGN_OR_RETURN(PipelineSpec spec, algorithm.StagesFor(layout, tiers));
  return Pipeline::Build(std::move(spec), layout);
}

std::string DescribeAlgorithm(const std::string& name, const AlgorithmOptions& options) {
  return absl::StrCat(name, "(", absl::StrJoin(options, ", ", absl::PairFormatter("=")), ")");
}

absl::StatusOr<bool> ParseBoolOption(absl::string_view name, absl::string_view value) {
  if (value == "true") return true;
  if (value == "false") return false;
  return absl::InvalidArgumentError(
      absl::StrCat("option ", name, " is '", value, "', neither 'true' nor 'false'"));
}

absl::StatusOr<uint64_t> ParseCountOption(absl::string_view name, absl::string_view value,
                                          uint64_t least) {
  uint64_t count = 0;
  if (absl::SimpleAtoi(value, &count) && count >= least) return count;
  return absl::InvalidArgumentError(
      absl::StrCat("option ", name, " is '", value, "', not a whole number of at least ", least));
}

absl::StatusOr<double> ParseNumberOption(absl::string_view name, absl::string_view value,
                                         NumberRange range) {
  double number = 0;
  // A NaN is in no range.
  if (absl::SimpleAtod(value, &number) && number >= range.least && number <= range.most) {
    return number;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "option ", name, " is '", value, "', not a number from ", range.least, " to ", range.most));
}

absl::Status UnknownOption(absl::string_view name, absl::string_view known) {
  return absl::InvalidArgumentError(
      absl::StrCat("option '", name, "' is unknown; there are: ", known));
}

}  // namespace pelton
