// An algorithm decides which tensors are communicated, when, and what each bucket's pipeline is.
#ifndef PELTON_ALGORITHMS_ALGORITHM_H_
#define PELTON_ALGORITHMS_ALGORITHM_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/tiers.h"
#include "comm/topology/matching.h"
#include "core/pipeline/pipeline.h"
#include "core/plan/plan.h"
#include "core/registry/option_table.h"
#include "core/registry/registry.h"
#include "core/round/schedule.h"

namespace pelton {

using AlgorithmOptions = Options;

// One file algorithms/<name>.cc implements it and registers it by name; see
// docs/adding_an_algorithm.md.
// Threads: one at a time. Owns: its options; the pipelines belong to the caller.
class Algorithm {
 public:
  virtual ~Algorithm() = default;

  // Errors: InvalidArgument: an unknown option or a value that does not fit, named with those that
  // do.
  absl::Status Configure(const AlgorithmOptions& options);
  // Binds every option that there is to the member that holds its value.
  virtual void BindOptions(OptionTable&) {}
  // After the options are read. Errors: InvalidArgument: values that do not fit each other.
  virtual absl::Status CheckOptions() { return absl::OkStatus(); }
  // What a rank sends in a round for a bucket of B bytes on n ranks, in words for lists.
  virtual std::string BytesSent() const = 0;
  // Which tensors, when, and what becomes of the results. After Configure. The same on all ranks.
  virtual Schedule schedule() const { return {}; }
  // Whether its stages use the tiers of the group beside the communicator of all its ranks.
  virtual bool IsHierarchical() const { return false; }
  // Whether its stages use windows, from Tiers::windows, which is null without. StagesFor makes
  // them, under the same names in the same order on all ranks.
  virtual bool UsesWindows() const { return false; }
  // How the control plane is to choose peers for Tiers::peers, which is null without; of the
  // leaders where it is hierarchical.
  virtual std::optional<PeerPolicy> peer_policy() const { return std::nullopt; }
  // What it asks of the plan. After Configure.
  virtual PlanConstraints Constraints() const { return {}; }
  // Whether its stages take buckets in a device's memory (Stage::takes_device_memory); a trainer
  // copies tensors of a device to and from the host's for those that do not. After Configure.
  virtual bool TakesDeviceMemory() const { return false; }
  // Whether ranks tell each other which tensors nobody has used (PipelineSpec::finds_unused, which
  // MakePipeline sets): a gradient or a momentum that no rank has made stays as it is, while
  // weights are there in any case. After Configure.
  virtual bool FindsUnused(const BucketLayout&) const {
    return schedule().source != Source::kWeights;
  }
  // Whether it communicates this tensor at all; the same on all ranks.
  virtual bool Takes(const TensorSpec& tensor) const { return true; }
  // What it promises of the results, for the conformance suite. Whether all ranks hold the same,
  // bit by bit (SUM-1a).
  virtual bool RanksAgree() const { return true; }
  // Whether a run that is repeated gives the same results, bit by bit. One whose ranks have rounds
  // of their own does not.
  virtual bool Repeats() const { return true; }
  // The reduction over all ranks, in rank order, that a tensor of `dtype` bitwise equals on a
  // transport that adds in rank order (SUM-1b); nothing if it is not one.
  virtual std::optional<ReduceOp> EqualsReduction(DType dtype) const { return std::nullopt; }
  // The parts of one bucket's pipeline; called on every rank with the same layout. The
  // communicators of `tiers` live as long as the pipeline; stages launch by BucketRun only. What
  // FindsUnused, Takes and Constraints say need not be said again; see SpecOf. Errors:
  // InvalidArgument: the options do not fit the bucket or the group.
  virtual absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout,
                                                 const Tiers& tiers) = 0;
};

// StagesFor, with the dtypes that the algorithm takes and the segments that its constraints allow.
// Errors: those of StagesFor.
absl::StatusOr<PipelineSpec> SpecOf(Algorithm& algorithm, const BucketLayout& layout,
                                    const Tiers& tiers);
// The pipeline of `layout` under `algorithm`. Errors: those of SpecOf and of Pipeline::Build;
// FailedPrecondition: it uses windows, and `tiers` has none.
absl::StatusOr<Pipeline> MakePipeline(Algorithm& algorithm, const BucketLayout& layout,
                                      const Tiers& tiers);

using AlgorithmFactory = std::unique_ptr<Algorithm> (*)();
using AlgorithmRegistry = Registry<AlgorithmFactory>;

// The algorithm `name`, configured. Errors: NotFound: lists the names there are; Configure's.
absl::StatusOr<std::unique_ptr<Algorithm>> MakeAlgorithm(const std::string& name,
                                                         const AlgorithmOptions& options);
// What a list says of an algorithm, with the defaults of all its options.
// Threads: a value. Owns: its texts.
struct AlgorithmDescription {
  std::string name;
  std::string summary;
  std::string subject;  // which tensors, and when, in words
  std::string bytes_sent;
  std::vector<DType> dtypes;
  bool ranks_agree;          // whether all ranks hold the same results
  bool takes_device_memory;  // without a copy through the host's
  std::vector<OptionDescription> options;
};
// Errors: NotFound: lists the names there are.
absl::StatusOr<AlgorithmDescription> DescriptionOf(const std::string& name);
// Name and options as one text, for PlanOptions::algorithm: "gradient_allreduce(average=true)".
std::string DescribeAlgorithm(const std::string& name, const AlgorithmOptions& options);

}  // namespace pelton

// One line beside an algorithm's code: REGISTER_ALGORITHM(name, "summary", Class);
#define REGISTER_ALGORITHM(name, summary, type)                           \
  static const bool pelton_registered_algorithm_##name [[maybe_unused]] = \
      ::pelton::AlgorithmRegistry::Get().Register(                        \
          #name, summary,                                                 \
          []() -> std::unique_ptr<::pelton::Algorithm> { return std::make_unique<type>(); })

#endif  // PELTON_ALGORITHMS_ALGORITHM_H_
