// COMMIT-1, for the trainer's tensors: a round whose communication ends at any of its operations on
// a wire leaves the weights of every registered algorithm bitwise as they were, or, on ranks where
// it was complete, as the whole round makes them. What stages keep: algorithms/commit_test.cc.
#include <algorithm>
#include <atomic>
#include <latch>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "backend/model_port.h"
#include "backend/test_ranks.h"
#include "backend/test_tensors.h"
#include "comm/communicator.h"
#include "comm/transport/transport.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

constexpr int kRanks = 3;

// What the communicators of rank 0 launch on its wire; one test at a time.
struct Countdown {
  std::atomic<uint64_t> launched{0};
  std::atomic<uint64_t> ends_at{0};  // 0: never
};
Countdown& OfRankZero() {
  static auto* const countdown = new Countdown();
  return *countdown;
}

// Ends the communication when rank 0 launches the operation that it is to end at.
// Threads: as Communicator. Owns: the communicator it wraps.
class EndingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    const uint64_t number = ++OfRankZero().launched;
    if (number == OfRankZero().ends_at) wrapped().Abort(absl::AbortedError("ended for the test"));
    return wrapped().Launch(operation, stream);
  }
};

// TCP between the hosts, whose communicators on rank 0 end where they are told to: Backend opens
// the wire that its options name, and with a host label for each rank all operations go by it.
// Threads: as Transport. Owns: the transport it wraps.
class EndingTransport final : public Transport {
 public:
  EndingTransport(std::unique_ptr<Transport> wrapped, Rank rank)
      : wrapped_(std::move(wrapped)), rank_(rank) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> opened, wrapped_->Open(id, group, deadline));
    if (rank_ != Rank(0)) return opened;
    return std::make_unique<EndingCommunicator>(std::move(opened));
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

// What a world came to. By rank.
struct Outcome {
  std::vector<absl::Status> ended = std::vector<absl::Status>(kRanks);
  std::vector<Tensors> before = std::vector<Tensors>(kRanks);  // the post that failed
  std::vector<Tensors> after = std::vector<Tensors>(kRanks);
  uint64_t operations = 0;  // of rank 0, on its wire, in the round that counts
};

// A rank's trainer.
// Threads: its rank's. Owns: the tensors and the port.
class Trainer {
 public:
  Trainer(Backend& backend, const Case& one) : rank_(backend.rank()), tensors_(Initial()) {
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
    port_ =
        *ModelPort::Create(backend, std::move(options), *MakeAlgorithm(one.algorithm, one.options),
                           std::move(specs), tensors_);
  }

  bool is_timed() const { return port_->schedule().trigger == TriggerKind::kTimer; }
  PlainTensors& tensors() { return tensors_; }
  // As they were when the last post began.
  const Tensors& before() const { return before_; }

  // A step of training, with the round that its algorithm makes due in it.
  absl::Status Step(uint64_t step) {
    if (port_->schedule().trigger == TriggerKind::kWhenReady) return Backward(step);
    for (EventKind kind : {EventKind::kForwardBegins, EventKind::kBackwardBegins,
                           EventKind::kBackwardEnds, EventKind::kBeforeStep}) {
      RETURN_IF_ERROR(Post(kind));
    }
    Train(tensors_.tensors(), rank_.value(), step);
    RETURN_IF_ERROR(Post(EventKind::kAfterStep));
    return is_timed() ? port_->Stop(absl::Seconds(30)) : absl::OkStatus();
  }
  absl::Status Resume() { return port_->Resume(); }

 private:
  absl::Status Post(EventKind kind, int32_t slot = 0) {
    before_ = tensors_.tensors();
    TrainingEvent event = Event(kind);
    event.slot = slot;
    return port_->Post(event);
  }
  absl::Status Backward(uint64_t step) {
    Train(tensors_.tensors(), rank_.value(), step);
    RETURN_IF_ERROR(Post(EventKind::kBackwardBegins));
    for (int32_t slot : {1, 0}) RETURN_IF_ERROR(Post(EventKind::kTensorReady, slot));
    RETURN_IF_ERROR(Post(EventKind::kBackwardEnds));
    RETURN_IF_ERROR(port_->Wait());
    return port_->AdoptOrder();
  }

  const Rank rank_;
  PlainTensors tensors_;
  Tensors before_;
  std::unique_ptr<ModelPort> port_;
};

// A merge changes all tensors, one after the other: whether no merge was left in the middle.
bool MergedAllOrNone(const std::vector<std::string>& merges) {
  const auto count = [&](const char* name) {
    return std::count(merges.begin(), merges.end(), name);
  };
  return count("t0") == count("t1");
}

// Two steps on all ranks, the second of which ends at rank 0's operation of this number.
Outcome RunWorld(const Case& one, uint64_t number) {
  Outcome outcome;
  OfRankZero().ends_at = 0;
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
    stepped.arrive_and_wait();
    if (rank == 0) {
      OfRankZero().launched = 0;
      OfRankZero().ends_at = number;
      armed.count_down();
    }
    armed.wait();
    absl::Status& ended = outcome.ended[rank];
    if (trainer.is_timed()) ended = trainer.Resume();
    if (ended.ok()) ended = trainer.Step(2);
    outcome.before[rank] = trainer.before();
    outcome.after[rank] = trainer.tensors().tensors();
    EXPECT_TRUE(MergedAllOrNone(trainer.tensors().merges)) << "rank " << rank;
    over.arrive_and_wait();
    return absl::OkStatus();
  });
  outcome.operations = OfRankZero().launched;
  return outcome;
}

bool HasOption(const std::string& algorithm, const std::string& name) {
  const AlgorithmDescription description = *DescriptionOf(algorithm);
  return std::any_of(description.options.begin(), description.options.end(),
                     [&](const OptionDescription& option) { return option.name == name; });
}

// Each rank on a host of its own, and where that makes a difference two on one.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const AlgorithmRegistry::Entry& entry : AlgorithmRegistry::Get().List()) {
    AlgorithmOptions options;
    if (HasOption(entry.name, "interval")) options["interval"] = "1";
    if (HasOption(entry.name, "sync_interval_ms")) options["sync_interval_ms"] = "0";
    if (HasOption(entry.name, "graph")) options["graph"] = "ring";
    cases.push_back({entry.name, options, {"a", "b", "c"}});
    if (!HasOption(entry.name, "hierarchical")) continue;
    options["hierarchical"] = "true";
    cases.push_back({entry.name, options, {"a", "a", "b"}});
  }
  cases.push_back({"decentralized", {{"peer_selection_mode", "shift_one"}}, {"a", "b", "c"}});
  cases.push_back({"diloco", {{"interval", "1"}, {"codec", "one_bit"}}, {"a", "b", "c"}});
  return cases;
}

class WeightsCommitTest : public ::testing::TestWithParam<Case> {};

TEST_P(WeightsCommitTest, WeightsAreThoseOfBeforeOrThoseOfTheWholeRound) {
  const bool is_timed =
      (*MakeAlgorithm(GetParam().algorithm, {}))->schedule().trigger == TriggerKind::kTimer;
  const Outcome whole = RunWorld(GetParam(), 0);
  for (const absl::Status& ended : whole.ended) ASSERT_TRUE(ended.ok()) << ended;
  ASSERT_GT(whole.operations, 0);
  for (uint64_t number = 1; number <= whole.operations; ++number) {
    const Outcome broken = RunWorld(GetParam(), number);
    // How many rounds a timer makes before all have asked for the end is a matter of time.
    if (is_timed) continue;
    EXPECT_FALSE(broken.ended[0].ok()) << "it was not ended at operation " << number;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const absl::Status& ended = broken.ended[rank];
      EXPECT_EQ(broken.after[rank], ended.ok() ? whole.after[rank] : broken.before[rank])
          << "rank " << rank << ", ended at operation " << number << ": " << ended;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WeightsCommitTest, ::testing::ValuesIn(Cases()),
                         [](const auto& info) {
                           return absl::StrCat(info.index, "_", info.param.algorithm);
                         });

}  // namespace
}  // namespace pelton
