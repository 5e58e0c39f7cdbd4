// Decentralized averaging in full precision: from before the forward pass until after the backward
// pass the ranks average the weights that the gradients are taken at; the optimizer then applies
// those gradients to the averages.
//
//   all        x_i = mean of all ranks' x.
//   shift_one  x_i = (x_i + x_peer) / 2 with the peer of the step (comm/topology/matching.h; with
//              an odd number of ranks one sits each step out). Steps count rounds, from 0.
//   random_matching, latency_aware
//              the same with the peer that the control plane chooses (comm/topology/matching.h), or
//              shift_one's in rounds for which a rank lacks its answer; that all have theirs is
//              agreed on at the head of the round (algorithms/stage/round_peers.h).
//   avoid_stragglers
//              the same with a rank that arrives at about the same time, whatever its round
// (comm/control/arrival_state.h); a rank that finds no peer in time keeps its weights.
//              Ranks need not take equally many steps; nothing in a round concerns a third rank (a
//              host, where it is hierarchical: the ranks of a host go together).
//
// Hierarchical, in pairs: with S_i the sum over the ranks of host i and s_i their number, the
// leaders of hosts i and j exchange sums, and all ranks of both get (S_i + S_j) / (s_i + s_j): each
// step keeps the mean over all ranks, however many a host has. Sums are rounded to the weights'
// dtype. Hierarchical `all` needs no steps of its own: an allreduce over several hosts is
// composed of tiers in any case (docs/hierarchy.md).
//
// In a global round (global_interval; Gossip-PGA, Chen et al., arXiv 2105.09080), in pairs: x_i =
// mean of all ranks' x, in place of the pair's.
//
// Steps: all, and in a global round: an allreduce per bucket. In pairs: a send and a receive per
// bucket; hierarchical: a reduce and a broadcast on the host around it. random_matching and
// latency_aware: an allreduce per round; avoid_stragglers: a call to the coordinator. Bytes: for a
// bucket of B bytes on n ranks: all, and in a global round: those of an allreduce of B bytes. In
// pairs: B from each rank that does not sit out; hierarchical: B from each host's leader, and the
// reduce and the broadcast on each host. random_matching and latency_aware: those of an allreduce
// of one byte per round, too. Result: all: bitwise the AVG allreduce. In pairs: the mean in rank
// order, bitwise equal on both ends. Source: Lian et al., Can Decentralized Algorithms Outperform
// Centralized Algorithms?, arXiv 1705.09056; shift_one: Bagua; avoid_stragglers: Lian et al.,
// Asynchronous Decentralized Parallel SGD, arXiv 1710.06952, but with exact means of pairs.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "algorithms/algorithm.h"
#include "algorithms/stage/round_peers.h"
#include "algorithms/stage/tier_stages.h"
#include "comm/communicator.h"
#include "comm/reduction/cuda/mean_library.h"
#include "comm/reduction/reduction.h"
#include "comm/scratch.h"
#include "comm/topology/matching.h"
#include "core/base/status.h"
#include "core/pipeline/operation.h"
#include "core/pipeline/standard_stages.h"
#include "core/pipeline/weight_table.h"

namespace pelton {
namespace {

// What the pair exchanges of all buckets share.
struct Pairing {
  // Shared by the stages of all buckets: it goes with the last of them, before the communicator.
  std::shared_ptr<RoundPeers> peers;
  std::vector<int32_t> sizes;  // ranks that each rank of the communicator stands for
};

// The bucket, a sum over `sizes[rank]` ranks, becomes the mean over those of both ends.
// On a device that is one operation between neighbours, whose kernel adds what comes: of two ranks
// the same bits, of hosts with several those of a product by the share in place of a quotient.
// Threads: as Stage. Owns: memory for what it receives in the host's memory.
class PairExchangeStage final : public Stage {
 public:
  // `received`: null where the bucket is on a device.
  PairExchangeStage(Communicator& communicator, Pairing pairing, std::unique_ptr<Scratch> received)
      : communicator_(communicator.id()),
        rank_(communicator.rank()),
        pairing_(std::move(pairing)),
        received_(std::move(received)) {}
  // For reports of what takes long.
  absl::string_view name() const override {
    return pairing_.peers->awaits_match()
               ? "pair exchange, waiting for the coordinator's choice of a peer"
               : "pair exchange";
  }
  bool takes_device_memory() const override { return received_ == nullptr; }

  absl::Status Start(BucketRun& run, StageState*) override {
    has_begun_ = false;
    pairing_.peers->Start(run);
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Advance(BucketRun& run, StageState*) override {
    if (!has_begun_) {
      ASSIGN_OR_RETURN(has_begun_, pairing_.peers->Advance(run));
      if (!has_begun_) return false;
      batch_.Clear();
      if (run.layout().flat_count == 0) return true;
      RETURN_IF_ERROR(run.device() == nullptr ? Exchange(run) : AverageOnDevice(run));
    }
    ASSIGN_OR_RETURN(const bool done, batch_.Advance(run));
    if (done && run.device() == nullptr) Average(run);
    return done;
  }

 private:
  Rank peer() const { return pairing_.peers->peer(); }
  size_t SizeOfHost(Rank rank) const {
    return static_cast<size_t>(pairing_.sizes[static_cast<size_t>(rank.value())]);
  }

  // Of the flat part.
  Operation OperationOn(const BucketRun& run) const {
    Operation operation;
    operation.dtype = run.layout().dtype;
    operation.count = run.segments().front().count;
    operation.peer = peer().value();
    operation.communicator = communicator_;
    operation.set_source(run.segments().front().location);
    return operation;
  }

  absl::Status Exchange(const BucketRun& run) {
    if (peer() == rank_) return absl::OkStatus();
    Operation operation = OperationOn(run);
    operation.kind = OperationKind::kSend;
    batch_.Add(operation);
    operation.kind = OperationKind::kRecv;
    operation.set_source({});
    operation.set_target(received_->At(0));
    batch_.Add(operation);
    return absl::OkStatus();
  }

  absl::Status AverageOnDevice(const BucketRun& run) {
    Neighborhood pair;
    size_t size = SizeOfHost(rank_);
    if (peer() != rank_) {
      size += SizeOfHost(peer());
      pair.sources = {{peer(), 1.0 / static_cast<double>(size)}};
      pair.destinations = pair.sources;
    }
    if (size == 1) return absl::OkStatus();
    pair.own = 1.0 / static_cast<double>(size);
    ASSIGN_OR_RETURN(shares_, WeightTable::Create(std::move(pair)));
    Operation mean = OperationOn(run);
    mean.kind = OperationKind::kNeighborAllReduce;
    mean.peer = shares_->id();
    mean.set_target(mean.source());
    if (IsComplex(mean.dtype)) {  // a mean of the parts
      mean.dtype = RealTypeOf(mean.dtype);
      mean.count *= 2;
    }
    batch_.Add(mean);
    return absl::OkStatus();
  }

  void Average(const BucketRun& run) const {
    const uint64_t count = run.layout().flat_count;
    std::byte* const flat = run.flat();
    if (peer() == rank_) {
      if (SizeOfHost(rank_) == 1) return;
      ReduceToMean({&flat, 1}, {&flat, 1}, count, run.layout().dtype, SizeOfHost(rank_));
      return;
    }
    // In rank order, so that both ends get the same bits.
    const std::byte* in_order[] = {flat, received_->data()};
    if (peer() < rank_) std::swap(in_order[0], in_order[1]);
    ReduceToMean(in_order, {&flat, 1}, count, run.layout().dtype,
                 SizeOfHost(rank_) + SizeOfHost(peer()));
  }

  const CommunicatorId communicator_;
  const Rank rank_;
  const Pairing pairing_;
  const std::unique_ptr<Scratch> received_;
  std::shared_ptr<const WeightTable> shares_;  // shared with the operation in flight
  OperationBatch batch_;
  bool has_begun_ = false;
};

// Threads: as Algorithm. Owns: its options.
class Decentralized final : public Algorithm {
 public:
  void BindOptions(OptionTable& table) override {
    table.Choice("peer_selection_mode", &mode_,
                 {"all", "shift_one", "random_matching", "latency_aware", "avoid_stragglers"},
                 "all: the mean of all ranks; else of pairs, as that mode chooses them");
    table.Count("communication_interval", &schedule_.interval, 1,
                "steps from one round to the next");
    table.Bool("hierarchical", &hierarchical_, "false: every rank is a peer; true: every host is");
    table.Count("global_interval", &global_interval_, 0,
                "in pairs: rounds from one mean of all ranks to the next; 0: there is none");
    table.Refuse("codec",
                 "ranks give each other their weights themselves, and what rounds those rounds the "
                 "model; low_precision_decentralized, over a ring, and choco_sgd, over a graph, "
                 "encode how far the weights have come since the last message");
  }
  absl::Status CheckOptions() override {
    in_pairs_ = mode_ != "all";
    if (global_interval_ > 0 && mode_ == "avoid_stragglers") {
      return absl::InvalidArgumentError(
          "option global_interval is given, but with peer_selection_mode avoid_stragglers ranks "
          "are "
          "not at the same round, so that they cannot take a mean of all; leave it at 0, or take "
          "shift_one or random_matching");
    }
    if (mode_ == "all" || mode_ == "shift_one") return absl::OkStatus();
    ASSIGN_OR_RETURN(policy_, ParsePeerPolicy(mode_));
    return absl::OkStatus();
  }
  std::string BytesSent() const override {
    return "all, and in global rounds: those of an allreduce of B bytes; in pairs: B; "
           "hierarchical: "
           "from each host's leader";
  }

  Schedule schedule() const override { return schedule_; }
  bool IsHierarchical() const override { return in_pairs_ && hierarchical_; }
  std::optional<PeerPolicy> peer_policy() const override { return policy_; }

  PlanConstraints Constraints() const override { return {.allows_standalone = false}; }
  bool Takes(const TensorSpec& tensor) const override { return IsFloatingPoint(tensor.dtype); }
  bool RanksAgree() const override { return !in_pairs_; }
  // Peers that the control plane chooses are agreed on, and found, by the host's memory.
  bool TakesDeviceMemory() const override {
    return !in_pairs_ || (!policy_.has_value() && FindMeanKernel().ok());
  }
  std::optional<ReduceOp> EqualsReduction(DType) const override {
    if (in_pairs_) return std::nullopt;
    return ReduceOp::kAvg;
  }

  absl::StatusOr<PipelineSpec> StagesFor(const BucketLayout& layout, const Tiers& tiers) override {
    PipelineSpec spec;
    if (!in_pairs_) {
      spec.stages.push_back(MakeAllReduceStage(ReduceOp::kAvg));
      return spec;
    }
    PipelineSpec pairs;
    const auto add_exchange = [&](Communicator& ranks, const std::vector<int32_t>& sizes) {
      return AddExchange(ranks, tiers, sizes, layout, pairs);
    };
    RETURN_IF_ERROR(AddExchangeOfPeers(tiers, hierarchical_, ReduceOp::kSum, add_exchange, pairs));
    if (global_interval_ == 0) return pairs;
    for (std::unique_ptr<Stage>& stage : pairs.stages) {
      spec.stages.push_back(
          MakeStageOfRounds(std::move(stage), WhichRounds::kOthers, global_interval_));
    }
    spec.stages.push_back(MakeStageOfRounds(MakeAllReduceStage(ReduceOp::kAvg),
                                            WhichRounds::kMultiples, global_interval_));
    return spec;
  }

 private:
  absl::Status AddExchange(Communicator& communicator, const Tiers& tiers,
                           std::vector<int32_t> sizes, const BucketLayout& layout,
                           PipelineSpec& spec) {
    std::shared_ptr<RoundPeers> peers = peers_.lock();
    if (peers == nullptr) {
      ASSIGN_OR_RETURN(
          peers, RoundPeers::Create(communicator, tiers.peers, tiers.matchmaker, global_interval_));
      peers_ = peers;
    }
    std::unique_ptr<Scratch> received;
    if (tiers.device == nullptr || policy_.has_value()) {
      const uint64_t size_bytes = layout.flat_count * SizeOf(layout.dtype);
      // A bucket of empty tensors has no elements.
      ASSIGN_OR_RETURN(received, Scratch::Create(communicator, "peer weights",
                                                 std::max<uint64_t>(size_bytes, 1)));
    }
    spec.stages.push_back(std::make_unique<PairExchangeStage>(
        communicator, Pairing{std::move(peers), std::move(sizes)}, std::move(received)));
    return absl::OkStatus();
  }

  Schedule schedule_{.source = Source::kWeights, .trigger = TriggerKind::kInForward};
  std::string mode_ = "all";
  bool in_pairs_ = false;
  std::optional<PeerPolicy> policy_;
  bool hierarchical_ = true;
  uint64_t global_interval_ = 0;
  std::weak_ptr<RoundPeers> peers_;  // of the pipelines that there are
};

REGISTER_ALGORITHM(decentralized,
                   "average of the weights, of all ranks or of one peer after another",
                   Decentralized);

}  // namespace
}  // namespace pelton
