#include "backend/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/control/plan_check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Backend& backend, const ModelOptions& options,
                                                     std::vector<TensorSpec> tensors) {
  RETURN_IF_ERROR(CheckGroup(options.group, backend.world_size(), backend.rank()));
  std::unique_ptr<Model> model(new Model(backend));
  ASSIGN_OR_RETURN(model->algorithm_, MakeAlgorithm(options.algorithm, options.algorithm_options));
  ASSIGN_OR_RETURN(Plan plan, model->MakePlan(options, std::move(tensors)));
  RETURN_IF_ERROR(model->AgreeOn(plan, options));
  ASSIGN_OR_RETURN(model->communicator_, backend.Open(options.group));
  RETURN_IF_ERROR(model->MakeRounds(std::move(plan), options));
  return model;
}

absl::StatusOr<Plan> Model::MakePlan(const ModelOptions& options, std::vector<TensorSpec> tensors) {
  PlanOptions plan;
  plan.world_size = options.group.size();
  plan.bucket_size_bytes = options.bucket_size_bytes;
  plan.constraints = algorithm_->Constraints();
  if (plan.constraints.allows_standalone) plan.standalone_bytes = options.standalone_bytes;
  plan.algorithm = DescribeAlgorithm(options.algorithm, options.algorithm_options);
  return Plan::Build(std::move(tensors), std::move(plan));
}

absl::Status Model::AgreeOn(const Plan& plan, const ModelOptions& options) {
  PlanSummary summary;
  summary.name = options.name;
  summary.members = options.group.members;
  summary.generation = plan.generation();
  summary.hash = plan.Hash();
  summary.entries = absl::StrSplit(plan.Serialize(), '\n', absl::SkipEmpty());
  return CheckPlan(backend_.control(), backend_.rank(), summary,
                   Clock::Real().Now() + backend_.options().join_timeout);
}

absl::Status Model::MakeRounds(Plan plan, const ModelOptions& options) {
  ModelRoundsOptions rounds;
  rounds.model_name = options.name;
  rounds.rank = communicator_->rank();
  rounds.runner = communicator_.get();
  rounds.pipeline_factory = [this](const BucketLayout& layout) {
    return algorithm_->PipelineFor(layout, *communicator_);
  };
  rounds.register_region = [this](const Region& region) { return communicator_->Register(region); };
  rounds.deregister_region = [this](RegionId region) { communicator_->Deregister(region); };
  rounds.operation_timeout = options.timeout;
  rounds.on_failure = [this](const absl::Status& reason) { backend_.Report(reason); };
  ASSIGN_OR_RETURN(rounds_, ModelRounds::Create(std::move(plan), std::move(rounds)));
  return absl::OkStatus();
}

}  // namespace pelton
