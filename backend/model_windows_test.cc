// Stages that put into windows and collect from them. Runs in process and, as
// backend/link:model_windows_link_test, with a daemon for each rank.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/link/attach.h"
#include "backend/model.h"
#include "backend/model_port.h"
#include "backend/test_fixture_ranks.h"
#include "backend/test_ranks.h"
#include "backend/test_tensors.h"
#include "comm/control/control.h"
#include "comm/group.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// In odd rounds puts its bucket into the next rank's slot; in even ones makes the bucket what came
// from the rank before, so that the ranks' buckets go around by one place in two rounds.
// Threads: as Stage. Owns: the window and its tensor.
class PassOnStage final : public Stage {
 public:
  static absl::StatusOr<std::unique_ptr<Stage>> Make(const BucketLayout& layout,
                                                     const Tiers& tiers) {
    const int32_t size = tiers.all->world_size().value();
    const int32_t rank = tiers.all->rank().value();
    std::unique_ptr<PassOnStage> stage(new PassOnStage);
    stage->windows_ = tiers.windows;
    stage->next_ = Rank((rank + 1) % size);
    stage->before_ = Rank((rank + size - 1) % size);
    stage->elements_.resize(layout.flat_count * SizeOf(layout.dtype));
    WindowOptions options;
    options.name = absl::StrCat("bucket ", layout.id.value());
    options.tensor = {stage->elements_.data(), layout.flat_count, layout.dtype};
    options.shape = {static_cast<int64_t>(layout.flat_count)};
    options.sources = {stage->before_};
    options.destinations = {stage->next_};
    options.zero_init = true;
    ASSIGN_OR_RETURN(stage->window_, tiers.windows->Make(std::move(options)));
    return stage;
  }

  absl::string_view name() const override { return "pass on"; }
  absl::Status Start(BucketRun& run, StageState*) override {
    const WindowAccess access{.deadline = windows_->deadline()};
    if (run.round().value() % 2 == 1) {
      const Neighbor next[] = {{next_, 1}};
      const Tensor bucket{run.flat(), run.layout().flat_count, run.layout().dtype};
      return window_->Put(bucket, next, /*own_weight=*/1, access);
    }
    const Neighbor before[] = {{before_, 1}};
    return window_->UpdateFromInlets({.own_weight = 0, .sources = before, .target = run.flat()},
                                     access);
  }

 private:
  PassOnStage() = default;

  WindowSource* windows_ = nullptr;
  Rank next_;
  Rank before_;
  std::vector<std::byte> elements_;
  std::unique_ptr<Window> window_;
};

// Threads: as Algorithm. Owns: nothing.
class PassingOn final : public Algorithm {
 public:
  std::string BytesSent() const override { return "B bytes in every second round"; }
  Schedule schedule() const override {
    return {.source = Source::kWeights, .trigger = TriggerKind::kOnCall};
  }
  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }
  bool RanksAgree() const override { return false; }
  bool UsesWindows() const override { return true; }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    ASSIGN_OR_RETURN(spec.stages.emplace_back(), PassOnStage::Make(layout, tiers));
    return spec;
  }
};

REGISTER_ALGORITHM(test_passing_on, "each rank's tensors go around a ring", PassingOn);

ModelOptions OptionsOf(const Backend& backend) {
  ModelOptions options;
  options.name = "net";
  options.group = Group::World(backend.world_size());
  options.algorithm = "test_passing_on";
  options.bucket_size_bytes = 300;  // each tensor is a bucket of its own
  return options;
}

std::vector<TensorSpec> Specs() {
  return {{.name = "t0", .count = kCounts[0]}, {.name = "t1", .count = kCounts[1]}};
}

Tensors TensorsOf(int32_t rank) {
  Tensors tensors = Initial();
  Train(tensors, rank, 1);
  return tensors;
}

void ExpectAllOk(const std::vector<absl::Status>& ended) {
  for (const absl::Status& status : ended) EXPECT_TRUE(status.ok()) << status;
}

// With daemons it is their memory that the windows share.
TEST(ModelWindowsTest, StagesPutIntoTheOtherRanksWindowsAndCollectFromTheirOwn) {
  for (const int32_t size : {2, 3, 4}) {
    ExpectAllOk(RunFixtureRanks(size, [&](const BackendOptions& options) -> absl::Status {
      const int32_t rank = options.rank.value();
      ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
      PlainTensors tensors(TensorsOf(rank));
      PortOptions port_options;
      port_options.model = OptionsOf(*backend);
      port_options.model.timeout = absl::Seconds(30);
      ASSIGN_OR_RETURN(std::unique_ptr<ModelPort> port,
                       ModelPort::Create(*backend, port_options, std::make_unique<PassingOn>(),
                                         Specs(), tensors));
      for (int round = 1; round <= 4; ++round) {
        RETURN_IF_ERROR(port->Post(Event(EventKind::kCall)));
        // A round of this algorithm waits for nobody.
        RETURN_IF_ERROR(Barrier(backend->control(), absl::StrCat("round ", round), Soon()));
      }
      EXPECT_EQ(tensors.tensors(), TensorsOf((rank + size - 2) % size)) << rank << " of " << size;
      return absl::OkStatus();
    }));
  }
}

// A round with `tensors`, which become its results.
absl::Status RunRound(ModelRounds& rounds, Tensors& tensors) {
  for (int32_t slot = 0; slot < 2; ++slot) {
    const std::vector<float>& tensor = tensors[static_cast<size_t>(slot)];
    std::memcpy(rounds.DataOf(SlotId(slot)), tensor.data(), tensor.size() * sizeof(float));
    RETURN_IF_ERROR(rounds.MarkReady(SlotId(slot)));
  }
  RETURN_IF_ERROR(rounds.EndRound());
  RETURN_IF_ERROR(rounds.WaitRound(Soon()));
  for (int32_t slot = 0; slot < 2; ++slot) {
    std::vector<float>& tensor = tensors[static_cast<size_t>(slot)];
    std::memcpy(tensor.data(), rounds.ResultOf(SlotId(slot)).data, tensor.size() * sizeof(float));
  }
  return absl::OkStatus();
}

TEST(ModelWindowsTest, AnotherPlanHasWindowsOfItsOwn) {
  ExpectAllOk(RunFixtureRanks(2, [](const BackendOptions& options) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        Model::Create(*backend, OptionsOf(*backend), std::make_unique<PassingOn>(), Specs()));
    const int32_t rank = options.rank.value();
    Tensors tensors = TensorsOf(rank);
    uint64_t bucket_bytes = 0;
    for (const BucketLayout& bucket : model->rounds().plan().buckets()) {
      bucket_bytes += bucket.flat_count * SizeOf(bucket.dtype);
    }
    for (int round = 1; round <= 4; ++round) {
      const uint64_t sent_before = model->sent_bytes();
      RETURN_IF_ERROR(RunRound(model->rounds(), tensors));
      EXPECT_EQ(model->sent_bytes() - sent_before, round % 2 == 1 ? bucket_bytes : 0)
          << "round " << round;
      RETURN_IF_ERROR(Barrier(backend->control(), absl::StrCat("round ", round), Soon()));
      EXPECT_EQ(tensors, TensorsOf(round == 2 || round == 3 ? 1 - rank : rank))
          << "round " << round;
      // In order of registration; the first plan has the tensors the other way round.
      const SlotId order[] = {SlotId(0), SlotId(1)};
      if (round == 2) RETURN_IF_ERROR(model->rounds().Replan(order, Soon()));
    }
    return absl::OkStatus();
  }));
}

// Ranks 1 to 3 of 4, of which two are on one host and the third is on another one.
absl::Status PassOnBetweenHosts(BackendOptions options) {
  const int32_t rank = options.rank.value();
  options.host_label = rank == 2 ? "second" : "first";
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
  absl::Status ended;
  if (rank != 0) {
    ModelOptions model_options = OptionsOf(*backend);
    model_options.group = {{Rank(1), Rank(2), Rank(3)}, Generation(1)};
    auto model = Model::Create(*backend, model_options, std::make_unique<PassingOn>(), Specs());
    Tensors tensors = TensorsOf(rank);
    for (int round = 1; round <= 2 && model.ok() && ended.ok(); ++round) {
      ended = RunRound((*model)->rounds(), tensors);
      const AllGatherRequest done{absl::StrCat("round ", round), "", model_options.group.members};
      RETURN_IF_ERROR(backend->control().AllGatherAmong(done, Soon()).status());
    }
    if (!model.ok()) ended = model.status();
    if (ended.ok()) {
      EXPECT_EQ(tensors, TensorsOf(rank == 1 ? 3 : rank - 1)) << rank;
    }
  }
  // Nobody leaves while others need the coordinator.
  RETURN_IF_ERROR(Barrier(backend->control(), "end", Soon()));
  return ended;
}

TEST(ModelWindowsTest, BetweenHostsThereAreWindowsOrAnErrorThatNamesTheAlgorithm) {
  std::atomic<bool> has_wires_of_its_own = true;  // each rank in a thread says so
  const std::vector<absl::Status> ended = RunFixtureRanks(4, [&](const BackendOptions& options) {
    if (IsLinkAddress(options.coordinator_address)) has_wires_of_its_own = false;
    return PassOnBetweenHosts(options);
  });
  if (has_wires_of_its_own) return ExpectAllOk(ended);
  EXPECT_TRUE(ended[0].ok()) << ended[0];
  for (size_t rank = 1; rank < ended.size(); ++rank) {
    EXPECT_EQ(ended[rank].code(), absl::StatusCode::kUnimplemented) << ended[rank];
    EXPECT_THAT(std::string(ended[rank].message()),
                AllOf(HasSubstr("algorithm test_passing_on"), HasSubstr("windows between hosts"),
                      HasSubstr(absl::StrCat("rank ", rank))));
  }
}

// Tells whether there are windows for it. Threads: as Algorithm. Owns: nothing.
class Looking final : public Algorithm {
 public:
  Looking(bool uses_windows, bool* has_windows)
      : uses_windows_(uses_windows), has_windows_(has_windows) {}
  std::string BytesSent() const override { return "none"; }
  bool UsesWindows() const override { return uses_windows_; }
  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout&, const Tiers& tiers) override {
    *has_windows_ = tiers.windows != nullptr;
    return absl::CancelledError("seen");
  }

 private:
  const bool uses_windows_;
  bool* const has_windows_;
};

TEST(ModelWindowsTest, OnlyAnAlgorithmThatAsksForWindowsHasThem) {
  ExpectAllOk(RunFixtureRanks(1, [](const BackendOptions& options) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, Backend::Start(options));
    for (const bool uses_windows : {false, true}) {
      bool has_windows = !uses_windows;
      const auto model =
          Model::Create(*backend, OptionsOf(*backend),
                        std::make_unique<Looking>(uses_windows, &has_windows), Specs());
      EXPECT_EQ(model.status().code(), absl::StatusCode::kCancelled) << model.status();
      EXPECT_EQ(has_windows, uses_windows);
    }
    return absl::OkStatus();
  }));
}

TEST(ModelWindowsTest, WithoutASourceOfWindowsAPipelineIsRefused) {
  PassingOn algorithm;
  const auto refused = MakePipeline(algorithm, BucketLayout{}, Tiers{});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("Tiers::windows is null"));
}

}  // namespace
}  // namespace pelton
