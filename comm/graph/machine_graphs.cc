// Graphs over machines of equally many ranks, numbered machine by machine, in which every rank
// sends to one other in each step and takes the mean of its own tensor and what it receives.
//
// With M machines of L ranks, m a rank's machine and l its place there:
//   exp2_machines      all ranks of machine m send to those of machine m + 2^(t mod p) with their
//                      place, p = floor(log2(M - 1)) + 1.
//   inner_outer_ring   in step t the ranks at place o = t mod L send to machine m + 1; the others
//                      to the next place of their machine that is not o.
//   inner_outer_expo2  those at place o send to machine m + 2^(t mod p); the others to the place l
//                      + d of their machine, d = 2^(t mod q) and q = floor(log2(L - 2)) + 1, and
//                      one further where that reaches o or passes it.
// Source: BlueFog's GetExp2DynamicSendRecvMachineRanks, GetInnerOuterRingDynamicSendRecvRanks and
// GetInnerOuterExpo2DynamicSendRecvRanks.
#include <bit>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/graph/graph_sequence.h"

namespace pelton {
namespace {

// Steps until the powers of 2 up to `largest` have had their turn.
uint64_t PowersUpTo(int32_t largest) {
  return largest < 1 ? 1 : std::bit_width(static_cast<uint32_t>(largest));
}

// Where each rank of a step sends. Threads: a value.
struct Machines {
  int32_t count;
  int32_t ranks_each;

  int32_t size() const { return count * ranks_each; }
};

// The rank that `rank` sends to in `step`.
using Target = int32_t (*)(Machines machines, int32_t rank, uint64_t step);

int32_t OnMachine(Machines machines, int32_t machine, int32_t place) {
  return machine % machines.count * machines.ranks_each + place;
}

int32_t Exp2Target(Machines machines, int32_t rank, uint64_t step) {
  const uint64_t turn = step % PowersUpTo(machines.count - 1);
  return OnMachine(machines, rank / machines.ranks_each + (1 << turn), rank % machines.ranks_each);
}

int32_t RingTarget(Machines machines, int32_t rank, uint64_t step) {
  const auto each = machines.ranks_each;
  const auto outside = static_cast<int32_t>(step % static_cast<uint64_t>(each));
  const int32_t machine = rank / each;
  const int32_t place = rank % each;
  if (place == outside) return OnMachine(machines, machine + 1, place);
  const int32_t next = (place + 1) % each;
  return OnMachine(machines, machine, next == outside ? (next + 1) % each : next);
}

int32_t Expo2Target(Machines machines, int32_t rank, uint64_t step) {
  const auto each = machines.ranks_each;
  const auto outside = static_cast<int32_t>(step % static_cast<uint64_t>(each));
  const int32_t place = rank % each;
  if (place == outside) return Exp2Target(machines, rank, step);
  const int32_t distance = 1 << (step % PowersUpTo(each - 2));
  const int32_t to_outside = (outside - place + each) % each;
  const int32_t steps = distance + (distance >= to_outside ? 1 : 0);
  return OnMachine(machines, rank / each, (place + steps) % each);
}

// Threads: any. Owns: nothing.
class MachineGraphs final : public GraphSequence {
 public:
  MachineGraphs(Machines machines, Target target, uint64_t period)
      : machines_(machines), target_(target), period_(period) {}
  WorldSize size() const override { return WorldSize(machines_.size()); }
  uint64_t period() const override { return period_; }
  Graph At(uint64_t step) const override {
    std::vector<Graph::Edge> edges;
    for (int32_t rank = 0; rank < machines_.size(); ++rank) {
      edges.push_back({rank, target_(machines_, rank, step), 0.5});
    }
    return GraphOf(std::vector<double>(static_cast<size_t>(machines_.size()), 0.5),
                   std::move(edges));
  }

 private:
  const Machines machines_;
  const Target target_;
  const uint64_t period_;
};

// Threads: as GraphBuilder. Owns: its option.
class OverMachines : public GraphBuilder {
 public:
  void BindOptions(OptionTable& table) override {
    table.Count("ranks_each", &ranks_each_, 1, "ranks of a machine; divides the number of ranks");
  }
  absl::StatusOr<std::unique_ptr<GraphSequence>> Build(WorldSize size) const override {
    const auto n = static_cast<uint64_t>(size.value());
    if (n % ranks_each_ != 0 || n / ranks_each_ < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("option ranks_each is '", ranks_each_,
                       "', must divide the number of ranks into 2 machines or more"));
    }
    if (ranks_each_ < least_ranks_) {
      return absl::InvalidArgumentError(
          absl::StrCat("option ranks_each is '", ranks_each_, "', not at least ", least_ranks_));
    }
    const Machines machines = {static_cast<int32_t>(n / ranks_each_),
                               static_cast<int32_t>(ranks_each_)};
    return std::make_unique<MachineGraphs>(machines, target_, PeriodOf(machines));
  }

 protected:
  OverMachines(Target target, uint64_t least_ranks) : target_(target), least_ranks_(least_ranks) {}
  virtual uint64_t PeriodOf(Machines machines) const = 0;

 private:
  const Target target_;
  const uint64_t least_ranks_;
  uint64_t ranks_each_ = 1;
};

// Threads: as GraphBuilder. Owns: its option.
class Exp2Machines final : public OverMachines {
 public:
  Exp2Machines() : OverMachines(Exp2Target, 1) {}

 protected:
  uint64_t PeriodOf(Machines machines) const override { return PowersUpTo(machines.count - 1); }
};

// Threads: as GraphBuilder. Owns: its option.
class InnerOuterRing final : public OverMachines {
 public:
  InnerOuterRing() : OverMachines(RingTarget, 3) {}

 protected:
  uint64_t PeriodOf(Machines machines) const override {
    return static_cast<uint64_t>(machines.ranks_each);
  }
};

// Threads: as GraphBuilder. Owns: its option.
class InnerOuterExpo2 final : public OverMachines {
 public:
  InnerOuterExpo2() : OverMachines(Expo2Target, 3) {}

 protected:
  uint64_t PeriodOf(Machines machines) const override {
    const uint64_t powers =
        std::lcm(PowersUpTo(machines.count - 1), PowersUpTo(machines.ranks_each - 2));
    return std::lcm(powers, static_cast<uint64_t>(machines.ranks_each));
  }
};

REGISTER_GRAPH(exp2_machines, "from machine to machine, by powers of 2", Exp2Machines);
REGISTER_GRAPH(inner_outer_ring, "rings inside machines, while one place goes round outside",
               InnerOuterRing);
REGISTER_GRAPH(inner_outer_expo2, "the same by powers of 2", InnerOuterExpo2);

}  // namespace
}  // namespace pelton
