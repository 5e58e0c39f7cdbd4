// COMMIT-1, for the trainer's tensors and for what stages keep, in one round: a round whose
// communication ends at any of its operations on a wire leaves the weights and the state of every
// registered algorithm bitwise as they were, or, on ranks where it was complete, as the whole round
// makes them. Which rank ends it a seed says; algorithms/commit_test.cc lets each rank end at each
// of its operations, and backend/averaging_commit_test.cc does so for rounds by a timer, of which
// here is only the way through a port.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/model.h"
#include "backend/model_port.h"
#include "backend/test_ranks.h"
#include "backend/test_tensors.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "core/base/check.h"
#include "core/base/split_mix.h"
#include "core/base/status.h"
#include "core/round/slot_state.h"
#include "core/round/tensor_port.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int kRanks = 3;

// What a rank's communicators launch on its wire; one test at a time.
struct Countdown {
  std::atomic<uint64_t> launched{0};
  std::atomic<uint64_t> ends_at{0};  // 0: never
};
Countdown& CountdownOf(size_t rank) {
  static auto* const countdowns = new Countdown[kRanks];
  return countdowns[rank];
}

// Ends the communication when its rank launches the operation that it is to end at.
// Threads: as Communicator. Owns: the communicator it wraps.
class EndingCommunicator final : public ForwardingCommunicator {
 public:
  EndingCommunicator(std::unique_ptr<Communicator> wrapped, Countdown& countdown)
      : ForwardingCommunicator(std::move(wrapped)), countdown_(countdown) {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    const uint64_t ends_at = countdown_.ends_at;
    const bool is_to_end = ends_at != 0 && countdown_.launched + 1 >= ends_at;
    if (is_to_end) wrapped().Abort(absl::AbortedError("ended for the test"));
    absl::StatusOr<Completion> completion = wrapped().Launch(operation, stream);
    // What is to be tried again was none: how often that is depends on the others' pace.
    if (!absl::IsResourceExhausted(completion.status())) ++countdown_.launched;
    return completion;
  }

 private:
  Countdown& countdown_;
};

// TCP between the hosts, whose communicators end where they are told to: Backend opens the wire
// that its options name, and with a host label for each rank all operations go by it.
// Threads: as Transport. Owns: the transport it wraps.
class EndingTransport final : public Transport {
 public:
  EndingTransport(std::unique_ptr<Transport> wrapped, Rank rank)
      : wrapped_(std::move(wrapped)), rank_(rank) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, wrapped_->Open(id, group, deadline));
    return std::make_unique<EndingCommunicator>(std::move(opened),
                                                CountdownOf(static_cast<size_t>(rank_.value())));
  }
  void Abort(const absl::Status& reason) override { wrapped_->Abort(reason); }
  void SayGoodbye() override { wrapped_->SayGoodbye(); }

 private:
  const std::unique_ptr<Transport> wrapped_;
  const Rank rank_;
};

absl::StatusOr<std::unique_ptr<Transport>> MakeEndingTransport(const TransportOptions& options) {
  ASSIGN_OR_RETURN(const TransportRegistry::Entry tcp, TransportRegistry::Get().Find("tcp"));
  ASSIGN_OR_RETURN(std::unique_ptr<Transport> wrapped, tcp.factory(options));
  return std::make_unique<EndingTransport>(std::move(wrapped), options.rank);
}
REGISTER_TRANSPORT(ending, "TCP that ends at an operation", MakeEndingTransport);

struct Case {
  std::string algorithm;
  AlgorithmOptions options;
  std::vector<std::string> hosts;  // by rank

  friend void PrintTo(const Case& one, std::ostream* out) {
    *out << DescribeAlgorithm(one.algorithm, one.options);
  }
};

// Where a rank's communication ends in the round that counts. Threads: a value. Owns: nothing.
struct End {
  size_t rank = 0;
  uint64_t number = 0;  // from 1; 0: nowhere
};

// What stages keep: the bytes of each part, in order.
using State = std::vector<std::string>;

// What a rank came to. Threads: a value. Owns: its lists.
struct Outcome {
  absl::Status ended;
  Tensors before;  // the post that failed
  Tensors after;
  Tensors whole;  // what training or the last merge of all tensors had left
  State state_before;
  State state_after;
  uint64_t operations = 0;  // on its wire, in the round that counts
};
using Outcomes = std::vector<Outcome>;  // by rank

// Plain tensors that remember what they were whenever they were whole.
// Threads: as TensorPort. Owns: the tensors.
class WatchedTensors final : public TensorPort {
 public:
  WatchedTensors() : plain_(Initial()) { NoteWhole(); }

  PlainTensors& plain() { return plain_; }
  const Tensors& whole() const { return whole_; }
  void NoteWhole() { whole_ = plain_.tensors(); }

  absl::Status BeginMerge(absl::Time deadline) override { return plain_.BeginMerge(deadline); }
  absl::Status EndMerge() override { return plain_.EndMerge(); }
  void Place(SlotId slot, std::byte* memory) override { plain_.Place(slot, memory); }
  absl::StatusOr<Brought> Bring(SlotId slot, bool is_used) override {
    return plain_.Bring(slot, is_used);
  }
  void Merge(SlotId slot, const CommitRule& rule, bool used_by_any) override {
    plain_.Merge(slot, rule, used_by_any);
    if (++merged_ % std::size(kCounts) == 0) NoteWhole();
  }
  uint64_t Fingerprint() const override { return plain_.Fingerprint(); }

 private:
  PlainTensors plain_;
  Tensors whole_;
  size_t merged_ = 0;
};

// A rank's trainer.
// Threads: its rank's. Owns: the tensors and the port.
class Trainer {
 public:
  Trainer(Backend& backend, const Case& one) : rank_(backend.rank()) {
    PortOptions options;
    options.model.name = "net";
    options.model.group = Group::World(backend.world_size());
    options.model.algorithm = one.algorithm;
    options.model.algorithm_options = one.options;
    options.model.timeout = absl::Seconds(30);
    options.model.bucket_size_bytes = 300;  // each tensor is a bucket of its own
    options.model.commits_state = true;
    std::vector<TensorSpec> specs;
    for (uint64_t count : kCounts) {
      specs.push_back({.name = absl::StrCat("t", specs.size()), .count = count});
    }
    ModelSource source = ModelSource::Of(backend);
    source.make = [this, make = std::move(source.make)](const ModelOptions& model,
                                                        std::unique_ptr<Algorithm> algorithm,
                                                        std::vector<TensorSpec> tensors) mutable {
      absl::StatusOr<std::unique_ptr<Model>> made =
          make(model, std::move(algorithm), std::move(tensors));
      if (made.ok()) model_ = made->get();
      return made;
    };
    port_ =
        *ModelPort::Create(std::move(source), std::move(options),
                           *MakeAlgorithm(one.algorithm, one.options), std::move(specs), tensors_);
  }

  bool is_timed() const { return port_->schedule().trigger == TriggerKind::kTimer; }
  PlainTensors& tensors() { return tensors_.plain(); }
  const Tensors& whole() const { return tensors_.whole(); }
  // A port tells none after a failure, because nobody is to go on from it.
  State KeptByStages() {
    const std::vector<SlotState> saved = *model_->rounds().SaveStates(Soon());
    State state;
    for (const SlotState& part : saved) {
      state.emplace_back(reinterpret_cast<const char*>(part.bytes.data()), part.bytes.size());
    }
    return state;
  }
  // As they were when the last post began.
  const Tensors& before() const { return before_; }

  // A step of training, with the round that its algorithm makes due in it.
  absl::Status Step(uint64_t step) {
    if (port_->schedule().trigger == TriggerKind::kWhenReady) return Backward(step);
    for (EventKind kind : {EventKind::kForwardBegins, EventKind::kBackwardBegins,
                           EventKind::kBackwardEnds, EventKind::kBeforeStep}) {
      RETURN_IF_ERROR(Post(kind));
    }
    TrainAll(step);
    RETURN_IF_ERROR(Post(EventKind::kAfterStep));
    return is_timed() ? port_->Stop(absl::Seconds(30)) : absl::OkStatus();
  }
  absl::Status Resume() { return port_->Resume(); }

 private:
  void TrainAll(uint64_t step) {
    Train(tensors().tensors(), rank_.value(), step);
    tensors_.NoteWhole();
  }
  absl::Status Post(EventKind kind, int32_t slot = 0) {
    if (!is_timed()) before_ = tensors().tensors();  // else the rounds may be at them
    TrainingEvent event = Event(kind);
    event.slot = slot;
    return port_->Post(event);
  }
  absl::Status Backward(uint64_t step) {
    TrainAll(step);
    RETURN_IF_ERROR(Post(EventKind::kBackwardBegins));
    for (int32_t slot : {1, 0}) RETURN_IF_ERROR(Post(EventKind::kTensorReady, slot));
    RETURN_IF_ERROR(Post(EventKind::kBackwardEnds));
    RETURN_IF_ERROR(port_->Wait());
    return port_->AdoptOrder();
  }

  const Rank rank_;
  WatchedTensors tensors_;
  Tensors before_;
  Model* model_ = nullptr;  // the port's
  std::unique_ptr<ModelPort> port_;
};

// A merge changes all tensors, one after the other: whether no merge was left in the middle.
bool MergedAllOrNone(const std::vector<std::string>& merges) {
  const auto count = [&](const char* name) {
    return std::count(merges.begin(), merges.end(), name);
  };
  return count("t0") == count("t1");
}

void Rearm(const End& end) {
  for (size_t rank = 0; rank < kRanks; ++rank) {
    CountdownOf(rank).launched = 0;
    CountdownOf(rank).ends_at = rank == end.rank ? end.number : 0;
  }
}

// Two steps on all ranks, the second of which ends where `end` says.
Outcomes RunWorld(const Case& one, const End& end) {
  Outcomes outcomes(kRanks);
  Rearm({});
  std::latch stepped(kRanks);
  std::latch armed(1);
  std::latch over(kRanks);  // nobody leaves while another one is at its round
  RunRanks(kRanks, [&](BackendOptions options) {
    const auto rank = static_cast<size_t>(options.rank.value());
    options.wire = "ending";
    options.host_label = one.hosts[rank];
    options.operation_timeout = absl::Seconds(30);
    const std::unique_ptr<Backend> backend = *Backend::Start(options);
    Trainer trainer(*backend, one);
    PELTON_CHECK_OK(trainer.Step(1));
    Outcome& outcome = outcomes[rank];
    outcome.state_before = trainer.KeptByStages();
    stepped.arrive_and_wait();
    if (rank == 0) {
      Rearm(end);
      armed.count_down();
    }
    armed.wait();
    if (trainer.is_timed()) outcome.ended = trainer.Resume();
    if (outcome.ended.ok()) outcome.ended = trainer.Step(2);
    outcome.before = trainer.before();
    outcome.after = trainer.tensors().tensors();
    outcome.whole = trainer.whole();
    outcome.state_after = trainer.KeptByStages();
    EXPECT_TRUE(MergedAllOrNone(trainer.tensors().merges)) << "rank " << rank;
    over.arrive_and_wait();
    return absl::OkStatus();
  });
  for (size_t rank = 0; rank < kRanks; ++rank) {
    outcomes[rank].operations = CountdownOf(rank).launched;
  }
  return outcomes;
}

bool HasOption(const std::string& algorithm, const std::string& name) {
  const AlgorithmDescription description = *DescriptionOf(algorithm);
  return std::any_of(description.options.begin(), description.options.end(),
                     [&](const OptionDescription& option) { return option.name == name; });
}

bool IsTimed(const std::string& algorithm) {
  return (*MakeAlgorithm(algorithm, {}))->schedule().trigger == TriggerKind::kTimer;
}

// Each rank on a host of its own, and where that makes a difference two on one.
std::vector<Case> CasesWhoseRoundsAre(bool timed) {
  std::vector<Case> cases;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    if (IsTimed(entry.name) != timed) continue;
    AlgorithmOptions options;
    if (HasOption(entry.name, "interval")) options["interval"] = "1";
    if (HasOption(entry.name, "sync_interval_ms")) options["sync_interval_ms"] = "0";
    if (HasOption(entry.name, "graph")) options["graph"] = "ring";
    cases.push_back({entry.name, options, {"a", "b", "c"}});
    if (!HasOption(entry.name, "hierarchical")) continue;
    options["hierarchical"] = "true";
    cases.push_back({entry.name, options, {"a", "a", "b"}});
  }
  return cases;
}

std::vector<Case> StepCases() {
  std::vector<Case> cases = CasesWhoseRoundsAre(/*timed=*/false);
  cases.push_back({"decentralized", {{"peer_selection_mode", "shift_one"}}, {"a", "b", "c"}});
  cases.push_back({"diloco", {{"interval", "1"}, {"codec", "one_bit"}}, {"a", "b", "c"}});
  return cases;
}

// Of the ranks that launch so many operations, the one that is to end at that one.
size_t RankThatEnds(const Outcomes& whole, uint64_t seed, uint64_t number) {
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    if (whole[rank].operations >= number) ranks.push_back(rank);
  }
  return ranks[SplitMix(seed, number) % ranks.size()];
}

uint64_t MostOperations(const Outcomes& whole) {
  uint64_t most = 0;
  for (const Outcome& rank : whole) most = std::max(most, rank.operations);
  return most;
}

class WeightsCommitTest : public ::testing::TestWithParam<Case> {};

TEST_P(WeightsCommitTest, WeightsAndStateAreThoseOfBeforeOrThoseOfTheWholeRound) {
  const Outcomes whole = RunWorld(GetParam(), {});
  for (const Outcome& rank : whole) ASSERT_TRUE(rank.ended.ok()) << rank.ended;
  const uint64_t most = MostOperations(whole);
  ASSERT_GT(most, 0U);
  const uint64_t seed = GetParam().algorithm.size() + GetParam().options.size();
  for (uint64_t number = 1; number <= most; ++number) {
    const End end = {RankThatEnds(whole, seed, number), number};
    SCOPED_TRACE(absl::StrCat("rank ", end.rank, " ends at operation ", number));
    const Outcomes broken = RunWorld(GetParam(), end);
    EXPECT_FALSE(broken[end.rank].ended.ok()) << "it was not ended";
    for (size_t number_of_rank = 0; number_of_rank < kRanks; ++number_of_rank) {
      const Outcome& rank = broken[number_of_rank];
      const Outcome& undisturbed = whole[number_of_rank];
      const bool is_whole = rank.ended.ok();
      EXPECT_EQ(rank.after, is_whole ? undisturbed.after : rank.before)
          << "rank " << number_of_rank << ": " << rank.ended;
      EXPECT_EQ(rank.state_before, undisturbed.state_before) << "rank " << number_of_rank;
      EXPECT_EQ(rank.state_after, is_whole ? undisturbed.state_after : rank.state_before)
          << "rank " << number_of_rank << ": " << rank.ended;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WeightsCommitTest, ::testing::ValuesIn(StepCases()),
                         [](const auto& info) {
                           return absl::StrCat(info.index, "_", info.param.algorithm);
                         });

class TimedWeightsCommitTest : public ::testing::TestWithParam<Case> {};

// How many rounds a timer makes is a matter of time, so that there is nothing to be held against
// bit by bit but what the tensors were when they were whole.
TEST_P(TimedWeightsCommitTest, WeightsAreThoseOfTheLastWholeMerge) {
  constexpr uint64_t kMostNumbers = 4;
  const Outcomes whole = RunWorld(GetParam(), {});
  for (const Outcome& rank : whole) ASSERT_TRUE(rank.ended.ok()) << rank.ended;
  int failed = 0;
  for (uint64_t number = 1; number <= std::min(MostOperations(whole), kMostNumbers); ++number) {
    for (const Outcome& rank : RunWorld(GetParam(), {RankThatEnds(whole, 1, number), number})) {
      EXPECT_EQ(rank.after, rank.whole) << "ended at operation " << number << ": " << rank.ended;
      failed += rank.ended.ok() ? 0 : 1;
    }
  }
  EXPECT_GT(failed, 0) << "no round was ended";
}

INSTANTIATE_TEST_SUITE_P(All, TimedWeightsCommitTest,
                         ::testing::ValuesIn(CasesWhoseRoundsAre(/*timed=*/true)),
                         [](const auto& info) { return info.param.algorithm; });

}  // namespace
}  // namespace pelton
