#include "backend/model.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "backend/group_windows.h"
#include "backend/peer_selector.h"
#include "backend/watched_communicator.h"
#include "comm/communicator.h"
#include "comm/control/plan_check.h"
#include "comm/tiers.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "core/memory/device_queue.h"

namespace pelton {
namespace {

// Longer than a call to the coordinator is late at most.
constexpr absl::Duration kAnswerMargin = absl::Seconds(2);

template <typename Runner>
void RunOn(Runner& runner, ModelRoundsOptions& rounds) {
  rounds.runner = &runner;
  rounds.register_region = [&runner](const Region& region) {
    const absl::Status registered = runner.Register(region);
    // Then operations on the memory take another way.
    return absl::IsUnimplemented(registered) ? absl::OkStatus() : registered;
  };
  rounds.deregister_region = [&runner](RegionId region) { runner.Deregister(region); };
}

// Threads: as Model. Owns: as Model.
class LocalModel final : public Model {
 public:
  explicit LocalModel(Backend& backend) : backend_(backend) {}
  ~LocalModel() override {
    if (sight_ != 0) backend_.Hide(sight_);
  }

  // Once, and first. Errors: as those of Model::Create.
  absl::Status Start(const ModelOptions& options, std::unique_ptr<Algorithm> algorithm,
                     std::vector<TensorSpec> tensors);

  ModelRounds& rounds() override { return *rounds_; }
  Rank rank() const override { return communicator_->rank(); }
  const Algorithm& algorithm() const override { return *algorithm_; }
  uint64_t sent_bytes() const override;
  absl::Status Register(const Region& region) override {
    return runner_ != nullptr ? runner_->Register(region) : communicator_->Register(region);
  }
  void Deregister(RegionId region) override {
    return runner_ != nullptr ? runner_->Deregister(region) : communicator_->Deregister(region);
  }

 private:
  // Of the tensors. Errors: InvalidArgument: they are on several, or the GPU's stream is not given.
  static absl::StatusOr<Device> DeviceOf(const std::vector<TensorSpec>& tensors,
                                         const ModelOptions& options);
  absl::Status OpenDevice(Device device, const ModelOptions& options);

  absl::Status AgreeOn(const Plan& plan, const ModelOptions& options);
  absl::Status OpenTiers(const Group& group);
  absl::Status OpenWindows(const ModelOptions& options);
  // The hosts' leaders, in the group's order.
  std::vector<Rank> LeadersOf(const Group& group) const;
  // Asks the control plane for peers where the algorithm wants that.
  void SelectPeers(const ModelOptions& options);
  absl::Status MakeRounds(Plan plan, const ModelOptions& options);

  Backend& backend_;
  int64_t sight_ = 0;  // by which the backend hides it
  std::unique_ptr<Algorithm> algorithm_;
  Device device_;
  // Where the buckets are on a GPU; null else.
  std::unique_ptr<const cuda::CudaRuntime> runtime_;
  std::unique_ptr<CudaQueue> queue_;
  std::unique_ptr<WatchedCommunicator> communicator_;
  // Of a hierarchical algorithm; null else, and `leaders_` on ranks that lead no host.
  std::unique_ptr<WatchedCommunicator> host_;
  std::unique_ptr<WatchedCommunicator> leaders_;
  Tiers tiers_;
  std::unique_ptr<TieredRunner> runner_;  // null unless hierarchical
  // Where the algorithm names a policy, one of the two. After what the matchmaker wakes.
  std::unique_ptr<PeerSelector> peers_;
  std::unique_ptr<ArrivalMatchmaker> matchmaker_;
  std::unique_ptr<GroupWindows> windows_;  // null unless the algorithm uses them
  std::unique_ptr<ModelRounds> rounds_;    // last: it runs on the communicators, and has windows
};

absl::Status LocalModel::Start(const ModelOptions& options, std::unique_ptr<Algorithm> algorithm,
                               std::vector<TensorSpec> tensors) {
  RETURN_IF_ERROR(CheckGroup(options.group, backend_.world_size(), backend_.rank()));
  algorithm_ = std::move(algorithm);
  ASSIGN_OR_RETURN(const Device device, DeviceOf(tensors, options));
  ASSIGN_OR_RETURN(Plan plan, PlanOf(options, *algorithm_, std::move(tensors)));
  RETURN_IF_ERROR(AgreeOn(plan, options));
  RETURN_IF_ERROR(OpenDevice(device, options));
  ASSIGN_OR_RETURN(communicator_, backend_.Open(options.group, device, options.schedules));
  tiers_ = Tiers::Of(*communicator_);
  tiers_.device = queue_.get();
  if (algorithm_->IsHierarchical()) RETURN_IF_ERROR(OpenTiers(options.group));
  if (algorithm_->UsesWindows()) RETURN_IF_ERROR(OpenWindows(options));
  SelectPeers(options);
  return MakeRounds(std::move(plan), options);
}

absl::StatusOr<Device> LocalModel::DeviceOf(const std::vector<TensorSpec>& tensors,
                                            const ModelOptions& options) {
  const Device device = tensors.empty() ? Device{} : tensors.front().device;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.device == device) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model '", options.name, "': tensor '", tensors.front().name, "' is on ",
                     NameOf(device.kind), " ", device.index, ", '", tensor.name, "' on ",
                     NameOf(tensor.device.kind), " ", tensor.device.index));
  }
  if (device.kind != DeviceKind::kHost && options.callers_stream == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model '", options.name, "' is on ", NameOf(device.kind), ": callers_stream is null"));
  }
  return device;
}

absl::Status LocalModel::OpenDevice(Device device, const ModelOptions& options) {
  device_ = device;
  if (device.kind == DeviceKind::kHost) return absl::OkStatus();
  ASSIGN_OR_RETURN(runtime_, cuda::CudaRuntime::Load());
  ASSIGN_OR_RETURN(queue_, CudaQueue::Create(*runtime_, device.index, options.callers_stream));
  return absl::OkStatus();
}

uint64_t LocalModel::sent_bytes() const {
  uint64_t sum = 0;
  for (const auto* communicator : {&communicator_, &host_, &leaders_}) {
    if (*communicator != nullptr) sum += (*communicator)->sent_bytes();
  }
  if (windows_ != nullptr) sum += windows_->sent_bytes();
  return sum;
}

absl::Status LocalModel::AgreeOn(const Plan& plan, const ModelOptions& options) {
  PlanSummary summary;
  summary.name = options.name;
  summary.members = options.group.members;
  summary.version = plan.version();
  summary.hash = plan.Hash();
  summary.entries = absl::StrSplit(plan.Serialize(), '\n', absl::SkipEmpty());
  return CheckPlan(backend_.control(), backend_.rank(), summary,
                   Clock::Real().Now() + backend_.options().join_timeout);
}

std::vector<Rank> LocalModel::LeadersOf(const Group& group) const {
  std::vector<Rank> leaders;
  for (Rank member : group.members) {
    if (backend_.hosts().IntraRanks(group, member).front() == member) leaders.push_back(member);
  }
  return leaders;
}

void LocalModel::SelectPeers(const ModelOptions& options) {
  const std::optional<PeerPolicy> policy = algorithm_->peer_policy();
  if (!policy.has_value() || (tiers_.are_open() && !tiers_.is_leader())) return;
  std::vector<Rank> members = tiers_.are_open() ? LeadersOf(options.group) : options.group.members;
  if (members.size() == 1) return;  // it is its own peer by any rule
  // No other model has it, nor has one of another set of trainers.
  const CommunicatorId group = (tiers_.are_open() ? leaders_ : communicator_)->id();
  if (*policy == PeerPolicy::kAvoidStragglers) {
    MatchOptions matchmaker;
    matchmaker.question.group = group;
    matchmaker.question.members = std::move(members);
    matchmaker.self = backend_.rank();
    // What it says of an answer that is lost says more than that the round is late.
    const absl::Duration timeout = OperationTimeoutOf(options, backend_);
    matchmaker.timeout = timeout - std::min(timeout / 2, kAnswerMargin);
    matchmaker.standstill = &backend_.absences().standstill();
    matchmaker.wake = [this] {
      if (runner_ != nullptr) return runner_->Wake();
      communicator_->Wake();
    };
    matchmaker_ = std::make_unique<ArrivalMatchmaker>(backend_.session(), backend_.control(),
                                                      std::move(matchmaker));
    tiers_.matchmaker = matchmaker_.get();
    return;
  }
  SelectPeersRequest question;
  question.group = group;
  question.members = std::move(members);
  question.policy = *policy;
  peers_ = std::make_unique<PeerSelector>(backend_.session(), backend_.control(),
                                          std::move(question), backend_.rank());
  peers_->Prefetch(options.first_round.value() - 1);
  tiers_.peers = peers_.get();
}

// Every rank of the group sees the same hosts, so all of a tier open it in the same order.
absl::Status LocalModel::OpenTiers(const Group& group) {
  const Group leaders{LeadersOf(group), group.generation};
  for (Rank leader : leaders.members) {
    const std::vector<Rank> with = backend_.hosts().IntraRanks(group, leader);
    tiers_.host_sizes.push_back(static_cast<int32_t>(with.size()));
    tiers_.leader_ranks.push_back(*group.RankOf(leader));
  }
  const Group host{backend_.hosts().IntraRanks(group, backend_.rank()), group.generation};
  for (Rank member : host.members) tiers_.host_ranks.push_back(*group.RankOf(member));
  ASSIGN_OR_RETURN(host_, backend_.Open(host, device_));
  tiers_.host = host_.get();
  if (host.members.front() == backend_.rank()) {
    ASSIGN_OR_RETURN(leaders_, backend_.Open(leaders, device_));
    tiers_.leaders = leaders_.get();
  }
  runner_ = std::make_unique<TieredRunner>(tiers_);
  return absl::OkStatus();
}

absl::Status LocalModel::OpenWindows(const ModelOptions& options) {
  absl::StatusOr<std::unique_ptr<GroupWindows>> opened =
      GroupWindows::Open(backend_, options.group, OperationTimeoutOf(options, backend_));
  if (!opened.ok()) {
    return Annotate(opened.status(), absl::StrCat("algorithm ", options.algorithm, ", windows"));
  }
  windows_ = *std::move(opened);
  tiers_.windows = windows_.get();
  return absl::OkStatus();
}

absl::Status LocalModel::MakeRounds(Plan plan, const ModelOptions& options) {
  ModelRoundsOptions rounds;
  rounds.model_name = options.name;
  rounds.rank = communicator_->rank();
  rounds.device = queue_.get();
  rounds.pipeline_factory =
      [this, name = options.algorithm](const BucketLayout& layout) -> absl::StatusOr<Pipeline> {
    absl::StatusOr<Pipeline> made = MakePipeline(*algorithm_, layout, tiers_);
    if (!made.ok()) return Annotate(made.status(), absl::StrCat("algorithm ", name));
    return made;
  };
  if (runner_ == nullptr) {
    RunOn(*communicator_, rounds);
  } else {
    RunOn(*runner_, rounds);
  }
  rounds.operation_timeout = OperationTimeoutOf(options, backend_);
  rounds.first_round = options.first_round;
  rounds.commits_state = options.commits_state;
  rounds.viewer = options.viewer;
  rounds.standstill = &backend_.absences().standstill();
  rounds.parent = backend_.session();
  rounds.on_failure = [this, told = options.on_failure](const absl::Status& reason) {
    if (told != nullptr) return told(reason);
    backend_.Report(reason);
  };
  // Told to the others should this rank be lost.
  rounds.on_round = [this](Round round) { backend_.control().SetRound(round); };
  backend_.control().SetRound(options.first_round);
  ASSIGN_OR_RETURN(rounds_, ModelRounds::Create(std::move(plan), std::move(rounds)));
  sight_ = backend_.Show([this, name = options.name](absl::Time deadline) {
    return ModelSight{name, rounds_->Look(deadline), sent_bytes()};
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Backend& backend, const ModelOptions& options,
                                                     std::vector<TensorSpec> tensors) {
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options.algorithm, options.algorithm_options));
  return Create(backend, options, std::move(algorithm), std::move(tensors));
}

absl::StatusOr<std::unique_ptr<Model>> Model::Create(Backend& backend, const ModelOptions& options,
                                                     std::unique_ptr<Algorithm> algorithm,
                                                     std::vector<TensorSpec> tensors) {
  auto model = std::make_unique<LocalModel>(backend);
  RETURN_IF_ERROR(model->Start(options, std::move(algorithm), std::move(tensors)));
  return model;
}

absl::StatusOr<Plan> PlanOf(const ModelOptions& options, const Algorithm& algorithm,
                            std::vector<TensorSpec> tensors) {
  PlanOptions plan;
  plan.world_size = options.group.size();
  plan.bucket_size_bytes = options.bucket_size_bytes;
  plan.constraints = algorithm.Constraints();
  for (const TensorSpec& tensor : tensors) {
    if (algorithm.Takes(tensor)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model '", options.name, "': algorithm ", options.algorithm,
                     " cannot communicate tensor '", tensor.name, "' of ", NameOf(tensor.dtype)));
  }
  const bool is_on_host = tensors.empty() || tensors.front().device.kind == DeviceKind::kHost;
  if (plan.constraints.allows_standalone && is_on_host) {
    plan.standalone_bytes = options.standalone_bytes;
  }
  plan.buckets = options.buckets;
  plan.algorithm = DescribeAlgorithm(options.algorithm, options.algorithm_options);
  return Plan::Build(std::move(tensors), std::move(plan));
}

}  // namespace pelton
