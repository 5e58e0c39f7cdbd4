#include "backend/link/test_sim_link_world.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/watched_communicator.h"
#include "comm/group.h"
#include "comm/tiers.h"
#include "core/actor/sim_test.h"
#include "core/actor/wait_hook.h"
#include "core/base/sanitizer.h"
#include "core/base/status.h"
#include "core/round/model_rounds.h"

namespace pelton {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

// Of one rank, as Model::Create makes it of a backend: one host, nobody who chooses peers.
// Threads: the simulation's. Owns: as Model.
class SimModel final : public Model {
 public:
  SimModel(std::unique_ptr<Algorithm> algorithm, std::unique_ptr<Communicator> communicator)
      : algorithm_(std::move(algorithm)),
        communicator_(
            std::make_unique<WatchedCommunicator>(std::move(communicator), [](Communicator*) {})) {}

  absl::Status Start(Executor& executor, const ModelOptions& options,
                     std::vector<TensorSpec> tensors) {
    ASSIGN_OR_RETURN(Plan plan, PlanOf(options, *algorithm_, std::move(tensors)));
    ModelRoundsOptions rounds;
    rounds.model_name = options.name;
    rounds.rank = communicator_->rank();
    rounds.executor = &executor;
    rounds.runner = communicator_.get();
    rounds.pipeline_factory = [this](const BucketLayout& layout) {
      return MakePipeline(*algorithm_, layout, Tiers::Of(*communicator_));
    };
    rounds.register_region = [this](const Region& region) {
      const absl::Status registered = communicator_->Register(region);
      return absl::IsUnimplemented(registered) ? absl::OkStatus() : registered;
    };
    rounds.deregister_region = [this](RegionId region) { communicator_->Deregister(region); };
    rounds.operation_timeout = options.timeout;
    rounds.first_round = options.first_round;
    rounds.commits_state = options.commits_state;
    if (options.on_failure != nullptr) rounds.on_failure = options.on_failure;
    ASSIGN_OR_RETURN(rounds_, ModelRounds::Create(std::move(plan), std::move(rounds)));
    return absl::OkStatus();
  }

  ModelRounds& rounds() override { return *rounds_; }
  Rank rank() const override { return communicator_->rank(); }
  const Algorithm& algorithm() const override { return *algorithm_; }
  uint64_t sent_bytes() const override { return communicator_->sent_bytes(); }
  absl::Status Register(const Region& region) override { return communicator_->Register(region); }
  void Deregister(RegionId region) override { communicator_->Deregister(region); }

 private:
  const std::unique_ptr<Algorithm> algorithm_;
  const std::unique_ptr<WatchedCommunicator> communicator_;
  std::unique_ptr<ModelRounds> rounds_;  // last: it runs on the communicator
};

}  // namespace

SimOptions SimLinkWorld::Wires(SimExecutor& executor, bool is_without_latency) {
  SimOptions options;
  options.seed = executor.seed();
  options.clock = &executor.clock();
  if (is_without_latency) return options;
  options.link.latency = absl::Microseconds(1 + static_cast<int64_t>(executor.Uniform(50)));
  options.link.jitter = absl::Microseconds(static_cast<int64_t>(executor.Uniform(300)));
  options.link.bytes_per_second = executor.Uniform(2) == 0 ? 0 : 1e8;
  return options;
}

SimLinkWorld::SimLinkWorld(uint64_t seed, int32_t world_size)
    : world_size_(world_size),
      executor_(seed),
      is_without_latency_(executor_.Uniform(2) == 0),
      fabric_(WorldSize(world_size), Wires(executor_, is_without_latency_)),
      made_(static_cast<size_t>(world_size)),
      threads_(executor_) {
  executor_.AddEventSource(&fabric_);
}

SimLinkWorld::~SimLinkWorld() { executor_.RemoveEventSource(&fabric_); }

absl::StatusOr<std::unique_ptr<Model>> SimLinkWorld::MakeModel(Rank rank,
                                                               const ModelOptions& options,
                                                               std::vector<TensorSpec> tensors) {
  const auto place = static_cast<size_t>(rank.value());
  const size_t number = made_[place]++;
  if (number == opened_.size()) {
    const CommunicatorId id(static_cast<uint32_t>(number + 1));
    ASSIGN_OR_RETURN(auto communicators, fabric_.OpenAll(id, Group::World(WorldSize(world_size_))));
    opened_.push_back(std::move(communicators));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Algorithm> algorithm,
                   MakeAlgorithm(options.algorithm, options.algorithm_options));
  auto model = std::make_unique<SimModel>(std::move(algorithm), std::move(opened_[number][place]));
  RETURN_IF_ERROR(model->Start(executor_, options, std::move(tensors)));
  return model;
}

ModelServerOptions SimLinkWorld::Serving(Rank rank) {
  ModelServerOptions serving;
  serving.rank = rank;
  serving.make = [this, rank](const ModelOptions& options, std::vector<TensorSpec> tensors) {
    return MakeModel(rank, options, std::move(tensors));
  };
  return serving;
}

absl::Status SimLinkWorld::Meet(const std::string& name) {
  const int32_t& here = ++met_[name];
  const absl::Time deadline = executor_.Now() + kPatience;
  if (threads_.WaitUntil([&] { return here % world_size_ == 0; }, deadline)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("'", name, "': ", here, " of ", world_size_, " ranks have come"));
}

void ForEachWorld(uint64_t count, absl::FunctionRef<void(uint64_t seed)> test) {
  constexpr uint64_t kMostSanitized = 3;
  const bool is_named = std::getenv("PELTON_SEED") != nullptr;
  ForEachSeed(count, [&](uint64_t seed) {
    if (!kSanitized || is_named || seed <= kMostSanitized) test(seed);
  });
}

}  // namespace pelton
