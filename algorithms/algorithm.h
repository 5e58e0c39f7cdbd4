// An algorithm decides which tensors are communicated, when, and what each bucket's pipeline is.
#ifndef PELTON_ALGORITHMS_ALGORITHM_H_
#define PELTON_ALGORITHMS_ALGORITHM_H_

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/communicator.h"
#include "core/bucket/plan.h"
#include "core/pipeline/pipeline.h"
#include "core/registry/registry.h"

namespace pelton {

// Options by name, as text: "average" -> "true".
using AlgorithmOptions = std::map<std::string, std::string>;

// One file algorithms/<name>.cc implements it and registers it by name; see
// docs/adding_an_algorithm.md.
// Threads: one at a time. Owns: its options; the pipelines belong to the caller.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // Errors: InvalidArgument: an unknown option or a value that does not fit, named with those that
  // do.
  virtual absl::Status Configure(const AlgorithmOptions& options) = 0;
  // What it asks of the plan. After Configure.
  virtual PlanConstraints Constraints() const { return {}; }
  // Whether it communicates this tensor at all; the same on all ranks.
  virtual bool Takes(const TensorSpec& tensor) const { return true; }
  // What it promises of the results, for the conformance suite. Whether all ranks hold the same,
  // bit by bit (SUM-1a).
  virtual bool RanksAgree() const { return true; }
  // The reduction over all ranks, in rank order, that a tensor of `dtype` bitwise equals on a
  // transport that adds in rank order (SUM-1b); nothing if it is not one.
  virtual std::optional<ReduceOp> EqualsReduction(DType dtype) const { return std::nullopt; }
  // The pipeline of one bucket; called on every rank with the same layout. `communicator` says
  // rank, world size and id, and lives as long as the pipeline. Errors: those of Pipeline::Build.
  virtual absl::StatusOr<Pipeline> PipelineFor(const BucketLayout& layout,
                                               const Communicator& communicator) = 0;
};

using AlgorithmFactory = std::unique_ptr<Algorithm> (*)();
using AlgorithmRegistry = Registry<AlgorithmFactory>;

// The algorithm `name`, configured. Errors: NotFound: lists the names there are; Configure's.
absl::StatusOr<std::unique_ptr<Algorithm>> MakeAlgorithm(const std::string& name,
                                                         const AlgorithmOptions& options);
// Name and options as one text, for PlanOptions::algorithm: "gradient_allreduce(average=true)".
std::string DescribeAlgorithm(const std::string& name, const AlgorithmOptions& options);

// Errors: InvalidArgument: neither "true" nor "false", naming option and value.
absl::StatusOr<bool> ParseBoolOption(absl::string_view name, absl::string_view value);

}  // namespace pelton

// One line beside an algorithm's code: REGISTER_ALGORITHM(name, "summary", Class);
#define REGISTER_ALGORITHM(name, summary, type)                           \
  static const bool pelton_registered_algorithm_##name [[maybe_unused]] = \
      ::pelton::AlgorithmRegistry::Get().Register(                        \
          #name, summary,                                                 \
          []() -> std::unique_ptr<::pelton::Algorithm> { return std::make_unique<type>(); })

#endif  // PELTON_ALGORITHMS_ALGORITHM_H_
