#include "torch_bindings/csrc/user_algorithm.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/standard_stages.h"

namespace pelton::torch_bindings {
namespace {

uint64_t SizeBytesOf(const UserMemory& memory) { return memory.count * SizeOf(memory.dtype); }

// Has a function called, which may block. It looks at the user's tensors: what the stages before it
// have made for them is there, although the round may yet fail.
// Threads: as Stage. Owns: shares the function with a call that is under way.
class FunctionStage final : public BlockingStage {
 public:
  FunctionStage(std::string name, std::function<absl::Status()> call,
                std::shared_ptr<Outcomes> outcomes, ActorRef<StageCaller> caller)
      : BlockingStage(std::move(caller)),
        name_(std::move(name)),
        call_(std::move(call)),
        outcomes_(std::move(outcomes)) {}
  absl::string_view name() const override { return name_; }

 protected:
  BlockingCall::Function MakeCall(BucketRun&, StageState*) override {
    outcomes_->Commit();
    return call_;
  }

 private:
  const std::string name_;
  const std::function<absl::Status()> call_;
  const std::shared_ptr<Outcomes> outcomes_;
};

// A bucket's elements before an operation whose outcome goes to a peer weight; shared by the stages
// around the operation's, of which the first keeps them and the last one puts them back.
using KeptElements = std::shared_ptr<std::vector<std::byte>>;

std::unique_ptr<Stage> MakeKeepStage(const KeptElements& kept) {
  return MakeLocalStage("keep", [kept](const BucketRun& run, auto) {
    kept->assign(run.flat(), run.flat() + run.flat_size_bytes());
  });
}

std::unique_ptr<Stage> MakeRestoreStage(const KeptElements& kept, const UserMemory& peer_weight,
                                        const std::shared_ptr<Outcomes>& outcomes) {
  return MakeLocalStage("restore", [kept, peer_weight, outcomes](const BucketRun& run, auto) {
    PELTON_CHECK(peer_weight.count <= run.layout().flat_count) << "a peer weight of another bucket";
    std::swap_ranges(kept->begin(), kept->end(), run.flat());
    outcomes->Add(kept->data(), peer_weight);
  });
}

// The buffers of the stage's state are filled from the user's memory of the same name before it,
// and what they hold after it is the outcome for that. Threads: as Stage. Owns: as ForwardingStage;
// keeps the user's tensors alive.
class ReplicasStage final : public ForwardingStage {
 public:
  ReplicasStage(std::unique_ptr<Stage> stage, NamedMemory replicas,
                std::shared_ptr<Outcomes> outcomes)
      : ForwardingStage(std::move(stage)),
        replicas_(std::move(replicas)),
        outcomes_(std::move(outcomes)) {}

  absl::Status Start(BucketRun& run, StageState* state) override {
    for (const auto& replica : replicas_) {
      const StateBuffer* const buffer = BufferOf(state, replica.first);
      if (buffer == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage '", name(), "' keeps no '", replica.first, "'"));
      }
      std::memcpy(buffer->data, outcomes_->LatestOf(replica.second), SizeBytesOf(replica.second));
    }
    return ForwardingStage::Start(run, state);
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    const absl::StatusOr<bool> done = ForwardingStage::Advance(run, state);
    if (!done.ok() || !*done) return done;
    for (const auto& replica : replicas_) {
      outcomes_->Add(BufferOf(state, replica.first)->data, replica.second);
    }
    return true;
  }

 private:
  static const StateBuffer* BufferOf(const StageState* state, const std::string& name) {
    if (state == nullptr) return nullptr;
    const absl::Span<const StateBuffer> buffers = state->buffers();
    const auto found = std::find_if(buffers.begin(), buffers.end(),
                                    [&](const StateBuffer& buffer) { return buffer.name == name; });
    return found == buffers.end() ? nullptr : &*found;
  }

  const NamedMemory replicas_;
  const std::shared_ptr<Outcomes> outcomes_;
};

// All ranks agree on whether to stop: the control's is_running() is the answer. They exchange one
// byte, of which the smallest counts: 1 where a rank wants to stop.
// Threads: as Stage. Owns: the byte; shares the control with the user's handle.
class AgreeToStopStage final : public Stage {
 public:
  explicit AgreeToStopStage(std::shared_ptr<AveragingControl> control)
      : control_(std::move(control)) {}
  absl::string_view name() const override { return "agree to stop"; }

  absl::Status Start(BucketRun&, StageState*) override {
    wish_ = control_->wants_stop() ? 1 : 0;
    batch_.Clear();
    batch_.Add(AllReduceOf(ReduceOp::kMin, DType::kUInt8, 1, Locate(&wish_, 1)));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    const absl::StatusOr<bool> done = batch_.Advance(run);
    if (done.ok() && *done) control_->set_running(wish_ == 0);
    return done;
  }

 private:
  const std::shared_ptr<AveragingControl> control_;
  uint8_t wish_ = 0;
  OperationBatch batch_;
};

// A stage that is left out once the ranks have agreed to stop.
// Threads: as Stage. Owns: as ForwardingStage; shares the control with the user's handle.
class UnlessStoppedStage final : public ForwardingStage {
 public:
  UnlessStoppedStage(std::unique_ptr<Stage> stage, std::shared_ptr<AveragingControl> control)
      : ForwardingStage(std::move(stage)), control_(std::move(control)) {}
  absl::Status Start(BucketRun& run, StageState* state) override {
    runs_ = control_->is_running();
    return runs_ ? ForwardingStage::Start(run, state) : absl::OkStatus();
  }
  absl::StatusOr<bool> Advance(BucketRun& run, StageState* state) override {
    if (!runs_) return true;
    return ForwardingStage::Advance(run, state);
  }

 private:
  const std::shared_ptr<AveragingControl> control_;
  bool runs_ = true;
};

}  // namespace

void Outcomes::Add(const std::byte* data, UserMemory target) {
  outcomes_.push_back({data, std::move(target)});
}

const std::byte* Outcomes::LatestOf(const UserMemory& memory) const {
  for (auto outcome = outcomes_.rbegin(); outcome != outcomes_.rend(); ++outcome) {
    if (outcome->target.data == memory.data) return outcome->data;
  }
  return memory.data;
}

void Outcomes::Commit() {
  for (const Outcome& outcome : outcomes_) {
    std::memcpy(outcome.target.data, outcome.data, SizeBytesOf(outcome.target));
  }
  outcomes_.clear();
}

namespace {

// A bucket that one of the operations cannot work on is refused as a whole.
void RestrictTo(const std::vector<DType>& dtypes, PipelineSpec& spec) {
  if (dtypes.empty()) return;
  if (spec.dtypes.empty()) {
    spec.dtypes = dtypes;
    return;
  }
  const auto is_left_out = [&dtypes](DType dtype) {
    return std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end();
  };
  spec.dtypes.erase(std::remove_if(spec.dtypes.begin(), spec.dtypes.end(), is_left_out),
                    spec.dtypes.end());
}

// For a model the runtime chooses peers and opens windows, for an operation of a bucket it does
// not.
absl::Status CheckFitsBucket(const UserOperation& operation, const Algorithm& algorithm) {
  if (!algorithm.peer_policy().has_value() && !algorithm.UsesWindows()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      DescribeAlgorithm(operation.algorithm, operation.options),
      " has peers or windows that the runtime finds for a whole model, so it cannot be the "
      "operation of one bucket; train the model with that algorithm, or take peers that every rank "
      "knows by itself (of decentralized: peer_selection_mode all or shift_one)"));
}

// A stage may keep other state alone, such as what error feedback has held back.
bool KeepsReplicas(const Stage& stage, const BucketLayout& layout) {
  const std::unique_ptr<StageState> state = stage.MakeState(layout);
  if (state == nullptr) return false;
  const absl::Span<const StateBuffer> buffers = state->buffers();
  return std::any_of(buffers.begin(), buffers.end(), [](const StateBuffer& buffer) {
    return buffer.scope == StateScope::kReplica;
  });
}

}  // namespace

std::string DescribeOperations(const UserOperations& operations) {
  return absl::StrJoin(operations, ", ", [](std::string* out, const UserOperation& operation) {
    absl::StrAppend(out, operation.algorithm.empty()
                             ? "function"
                             : DescribeAlgorithm(operation.algorithm, operation.options));
  });
}

bool CallsFunctions(const std::vector<UserOperations>& buckets) {
  for (const UserOperations& operations : buckets) {
    for (const UserOperation& operation : operations) {
      if (operation.function != nullptr) return true;
    }
  }
  return false;
}

absl::StatusOr<std::unique_ptr<UserAlgorithm>> UserAlgorithm::Create(
    std::vector<UserOperations> buckets, ActorRef<StageCaller> caller) {
  std::unique_ptr<UserAlgorithm> made(new UserAlgorithm);
  made->caller_ = std::move(caller);
  for (size_t i = 0; i < buckets.size(); ++i) {
    std::vector<Step>& steps = made->buckets_.emplace_back();
    made->outcomes_.push_back(std::make_shared<Outcomes>());
    for (UserOperation& operation : buckets[i]) {
      Step& step = steps.emplace_back();
      step.operation = std::move(operation);
      if (step.operation.algorithm.empty()) continue;
      const std::string where = absl::StrCat("bucket ", i, ", ", step.operation.name);
      auto algorithm = MakeAlgorithm(step.operation.algorithm, step.operation.options);
      if (!algorithm.ok()) return Annotate(algorithm.status(), where);
      step.algorithm = *std::move(algorithm);
      RETURN_IF_ERROR(Annotate(CheckFitsBucket(step.operation, *step.algorithm), where));
    }
  }
  return made;
}

bool UserAlgorithm::IsHierarchical() const {
  for (const std::vector<Step>& steps : buckets_) {
    for (const Step& step : steps) {
      if (step.algorithm != nullptr && step.algorithm->IsHierarchical()) return true;
    }
  }
  return false;
}

PlanConstraints UserAlgorithm::Constraints() const {
  PlanConstraints constraints;
  constraints.packs_slots = true;
  constraints.allows_standalone = false;
  for (const std::vector<Step>& steps : buckets_) {
    for (const Step& step : steps) {
      if (step.algorithm == nullptr) continue;
      constraints.alignment_count =
          std::lcm(constraints.alignment_count, step.algorithm->Constraints().alignment_count);
    }
  }
  return constraints;
}

// Where a function alone makes the result, every tensor counts as used.
bool UserAlgorithm::FindsUnused(const BucketLayout& layout) const {
  bool finds = false;
  for (const Step& step : buckets_[static_cast<size_t>(layout.id.value())]) {
    if (step.algorithm == nullptr) continue;
    if (!step.algorithm->FindsUnused(layout)) return false;
    finds = true;
  }
  return finds;
}

absl::StatusOr<PipelineSpec> UserAlgorithm::StagesFor(const BucketLayout& layout,
                                                      const Tiers& tiers) {
  PipelineSpec spec;
  spec.allows_standalone = false;
  std::vector<Step>& steps = buckets_[static_cast<size_t>(layout.id.value())];
  for (Step& step : steps) {
    RETURN_IF_ERROR(Annotate(AddStep(step, layout, tiers, spec), step.operation.name));
  }
  if (spec.stages.empty()) spec.stages.push_back(MakeLocalStage("no-op", [](auto&&...) {}));
  return spec;
}

absl::Status UserAlgorithm::AddStep(Step& step, const BucketLayout& layout, const Tiers& tiers,
                                    PipelineSpec& spec) {
  if (step.algorithm == nullptr) {
    spec.stages.push_back(std::make_unique<FunctionStage>(
        step.operation.name, step.operation.function, OutcomesOf(layout), caller_));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(PipelineSpec part, SpecOf(*step.algorithm, layout, tiers));
  if (part.period != 1) {
    return absl::InvalidArgumentError("it runs in some rounds only; mark the tensors less often");
  }
  RestrictTo(part.dtypes, spec);
  if (!part.dtypes.empty() && spec.dtypes.empty()) {
    return absl::InvalidArgumentError(
        "it takes none of the dtypes that the operations before it take; put it into a bucket "
        "without them");
  }
  spec.alignment_count = std::lcm(spec.alignment_count, part.alignment_count);
  AddStages(step.operation, layout, std::move(part.stages), spec);
  return absl::OkStatus();
}

void UserAlgorithm::AddStages(const UserOperation& operation, const BucketLayout& layout,
                              std::vector<std::unique_ptr<Stage>> stages, PipelineSpec& spec) {
  const bool is_aside = operation.peer_weight.count > 0;
  const auto kept = std::make_shared<std::vector<std::byte>>();
  if (is_aside) spec.stages.push_back(MakeKeepStage(kept));
  if (operation.control != nullptr) {
    spec.stages.push_back(std::make_unique<AgreeToStopStage>(operation.control));
  }
  for (std::unique_ptr<Stage>& stage : stages) {
    spec.stages.push_back(Adapt(operation, layout, std::move(stage)));
  }
  if (is_aside) {
    spec.stages.push_back(MakeRestoreStage(kept, operation.peer_weight, OutcomesOf(layout)));
  }
}

std::unique_ptr<Stage> UserAlgorithm::Adapt(const UserOperation& operation,
                                            const BucketLayout& layout,
                                            std::unique_ptr<Stage> stage) const {
  if (operation.control != nullptr) {
    stage = std::make_unique<UnlessStoppedStage>(std::move(stage), operation.control);
  }
  // On ranks that lead no host, and where there is one host, no stage may keep any.
  if (!operation.replicas.empty() && KeepsReplicas(*stage, layout)) {
    stage =
        std::make_unique<ReplicasStage>(std::move(stage), operation.replicas, OutcomesOf(layout));
  }
  return stage;
}

absl::Status UserAlgorithm::Lock(absl::Time deadline) {
  for (const auto& one : Running()) {
    if (absl::Status status = one.second->LockWeights(deadline); !status.ok()) {
      for (const auto& held : locked_) held.second->UnlockWeights().IgnoreError();
      locked_.clear();
      return status;
    }
    locked_.push_back(one);
  }
  return absl::OkStatus();
}

bool UserAlgorithm::AddsToLive(BucketId bucket) const {
  return std::any_of(locked_.begin(), locked_.end(),
                     [bucket](const auto& one) { return one.first == bucket; });
}

absl::Status UserAlgorithm::Commit() {
  for (const std::shared_ptr<Outcomes>& outcomes : outcomes_) outcomes->Commit();
  absl::Status status;
  while (!locked_.empty()) {
    status.Update(locked_.back().second->UnlockWeights());
    locked_.pop_back();
  }
  return status;
}

std::vector<std::pair<BucketId, AveragingControl*>> UserAlgorithm::Running() const {
  std::vector<std::pair<BucketId, AveragingControl*>> running;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    for (const Step& step : buckets_[i]) {
      AveragingControl* const control = step.operation.control.get();
      if (control == nullptr || !control->is_running()) continue;
      running.emplace_back(BucketId(static_cast<int32_t>(i)), control);
    }
  }
  return running;
}

}  // namespace pelton::torch_bindings
