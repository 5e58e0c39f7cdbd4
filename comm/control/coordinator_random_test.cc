// Random lives of a job's processes against the state machine, in virtual time: whatever they do,
// each call is answered once and in time, each survivor hears of each loss, and nothing remains.
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "comm/control/coordinator_state.h"

namespace pelton {
namespace {

constexpr absl::Duration kSilence = absl::Seconds(10);
constexpr int kSeeds = 1500;
constexpr int kSteps = 150;

// One process that wants to be, or is, a rank. Threads: the test's. Owns: nothing.
struct Process {
  int rank = 0;
  std::optional<uint64_t> joining;  // the call
  std::optional<Caller> self;       // once it has joined
  bool streaming = false;
  std::set<int> heard_of;  // culprits of orders
};

// Drives one CoordinatorState with the choices of one seed, beside a model of what must come of it.
// Threads: the test's. Owns: state and model.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed), world_size_(1 + Pick(5)), processes_(world_size_) {
    for (int rank = 0; rank < world_size_; ++rank) processes_[rank].rank = rank;
  }

  void Step() {
    Process& process = processes_[Pick(world_size_)];
    switch (Pick(14)) {
      case 0:
      case 1:
      case 2:
        return Join(process);
      case 3:
        return OpenStream(process);
      case 4:
        return Pick(4) == 0 ? Die(process) : Beat(process);
      case 5:
        return Pick(4) == 0 ? Leave(process) : Beat(process);
      case 6:
      case 7:
        return AllGather(process);
      case 8:
        return KeyValue(process);
      case 9:
        return CancelOne();
      case 10:
        return Advance(absl::Milliseconds(Pick(3000)));
      case 11:
      case 12:
        return FindPeer(process);
      default:
        return Pick(8) == 0 ? Report(process) : Beat(process);
    }
  }

  // Everybody goes; then nothing may remain.
  void Finish() {
    for (Process& process : processes_) {
      if (process.self) Leave(process);
    }
    Advance(absl::Minutes(10));
    EXPECT_TRUE(open_.empty()) << open_.size() << " calls were never answered";
    for (const auto& [match, peers] : matches_) {
      const auto& [rank, peer] = *peers.begin();
      EXPECT_EQ(peers.size(), rank == peer ? 1 : 2) << "match " << std::get<2>(match);
    }
    EXPECT_EQ(state_.rank_count(), 0);
    EXPECT_EQ(state_.NextDeadline(), absl::InfiniteFuture());
  }

  int worlds() const { return worlds_; }
  int losses() const { return losses_; }
  int pairs() const { return pairs_; }

 private:
  int Pick(int count) { return static_cast<int>(random_() % count); }

  Call Open(int longest_ms) {
    const Call call{++last_call_, now_, now_ + absl::Milliseconds(1 + Pick(longest_ms))};
    open_.emplace(call.id, call.deadline);
    return call;
  }

  void Join(Process& process) {
    if (process.self || process.joining) return;
    JoinRequest request{
        .job = "job", .rank = Rank(process.rank), .world_size = WorldSize(world_size_), .host = {}};
    const int mistake = Pick(40);
    if (mistake == 0) request.world_size = WorldSize(world_size_ + 1);
    if (mistake == 1) request.protocol_version = 99;
    if (mistake == 2) request.rank = Rank(Pick(world_size_));
    Outbox outbox;
    const Call call = Open(20000);
    process.joining = call.id;
    state_.Join(call, request, &outbox);
    Check(outbox);
  }

  void OpenStream(Process& process) {
    if (!process.self || process.streaming) return;
    Outbox outbox;
    // Orders may come with it already.
    process.streaming = state_.OpenStream(*process.self, now_, &outbox).ok();
    if (!process.streaming) process.self.reset();
    Check(outbox);
  }

  void Beat(Process& process) {
    if (!process.self) return;
    if (!state_.Heartbeat(*process.self, {Round(1)}, now_).ok()) Forget(process);
  }

  void Die(Process& process) {
    if (!process.self || !process.streaming) return;
    Outbox outbox;
    const Caller self = *process.self;
    Forget(process);
    state_.StreamBroke(self, now_, &outbox);
    Check(outbox);
    ++losses_;
    for (const Process& other : processes_) {
      if (!other.self || !other.streaming || other.self->generation != self.generation) continue;
      EXPECT_TRUE(other.heard_of.contains(self.rank.value()))
          << "rank " << other.rank << " was not told of the loss of rank " << self.rank;
    }
  }

  void Leave(Process& process) {
    if (!process.self) return;
    Outbox outbox;
    const Caller self = *process.self;
    Forget(process);
    (void)state_.Leave(self, &outbox);
    Check(outbox);
  }

  void Report(Process& process) {
    if (!process.self) return;
    Outbox outbox;
    (void)state_.Report(*process.self, absl::InternalError("x"), &outbox);
    Check(outbox);
  }

  void AllGather(Process& process) {
    if (!process.self) return;
    Outbox outbox;
    const Call call = Open(5000);
    AllGatherRequest request{Pick(2) == 0 ? "a" : "b", std::to_string(process.self->rank.value())};
    std::vector<int> members;
    for (int rank = 0; rank < world_size_; ++rank) members.push_back(rank);
    if (world_size_ > 1 && Pick(2) == 0) {
      members = {world_size_ - 1, 0};  // a rank between them is refused
      request.members = {Rank(members[0]), Rank(members[1])};
    }
    gathers_[call.id] = members;
    state_.Ask(call, *process.self, request, &outbox);
    Check(outbox);
  }

  void KeyValue(Process& process) {
    if (!process.self) return;
    Outbox outbox;
    const std::string key = std::to_string(Pick(4));
    const Call call = Open(5000);
    using Kind = KeyValueRequest::Kind;
    const Kind kind = std::vector{Kind::kSet, Kind::kGet, Kind::kWait, Kind::kDelete}[Pick(4)];
    std::vector<std::string> keys = {key};
    if (kind == Kind::kWait) keys.push_back(std::to_string(Pick(4)));
    state_.Ask(call, *process.self, KeyValueRequest{.kind = kind, .keys = keys, .value = key},
               &outbox);
    Check(outbox);
  }

  void FindPeer(Process& process) {
    if (!process.self) return;
    Outbox outbox;
    const Call call = Open(5000);
    FindPeerRequest request;
    request.group = CommunicatorId(1 + Pick(2));
    for (int rank = 0; rank < world_size_; ++rank) request.members.emplace_back(rank);
    // Now and then a call is repeated, whether its answer has come or not.
    uint64_t& round = rounds_[{*process.self, request.group}];
    round += Pick(4) == 0 ? 0 : 1;
    request.round = round;
    finds_[call.id] = {*process.self, request.group};
    state_.Ask(call, *process.self, request, &outbox);
    Check(outbox);
  }

  void CancelOne() {
    if (open_.empty() || Pick(4) != 0) return;
    const uint64_t call = std::next(open_.begin(), Pick(static_cast<int>(open_.size())))->first;
    open_.erase(call);
    for (Process& process : processes_) {
      if (process.joining == call) process.joining.reset();
    }
    Outbox outbox;
    state_.Cancel("job", call, &outbox);
    Check(outbox);
  }

  // Goes from deadline to deadline, as the coordinator's timer does.
  void Advance(absl::Duration duration) {
    const absl::Time end = now_ + duration;
    while (state_.NextDeadline() <= end) {
      now_ = std::max(now_, state_.NextDeadline());
      Tick();
    }
    now_ = end;
    for (const auto& [call, deadline] : open_) {
      EXPECT_GT(deadline, now_) << "call " << call << " was not answered in time";
    }
  }

  void Tick() {
    Outbox outbox;
    state_.Tick(now_, &outbox);
    Check(outbox);
  }

  void Forget(Process& process) {
    process.self.reset();
    process.streaming = false;
    process.heard_of.clear();
  }

  void Check(const Outbox& outbox) {
    for (const Reply& reply : outbox.replies) CheckReply(reply);
    for (const AddressedOrder& addressed : outbox.orders) CheckOrder(addressed);
    for (const EndedStream& ended : outbox.ended_streams) {
      for (Process& process : processes_) {
        if (process.self == ended.rank) Forget(process);
      }
    }
  }

  void CheckReply(const Reply& reply) {
    EXPECT_EQ(open_.erase(reply.call), 1) << "call " << reply.call << " was answered twice";
    if (const auto* const gathered = std::get_if<AllGatherResult>(&reply.answer)) {
      const std::vector<int>& members = gathers_.at(reply.call);
      ASSERT_EQ(gathered->values->size(), members.size());
      for (size_t i = 0; i < members.size(); ++i) {
        EXPECT_EQ((*gathered->values)[i], std::to_string(members[i]));
      }
    }
    if (finds_.contains(reply.call) && reply.status.ok()) CheckMatch(reply);
    for (Process& process : processes_) {
      if (process.joining != reply.call) continue;
      process.joining.reset();
      if (reply.membership == nullptr) continue;
      const Generation generation = reply.membership->generation;
      EXPECT_GE(generation, last_generation_);  // GEN-1
      worlds_ += generation != last_generation_;
      last_generation_ = generation;
      process.self = Caller{"job", Rank(process.rank), generation};
      process.heard_of.clear();
    }
  }

  // Two ranks at most have a match, and each is the other's peer.
  void CheckMatch(const Reply& reply) {
    const auto& [caller, group] = finds_.at(reply.call);
    const int rank = caller.rank.value();
    const PeerMatch& match = std::get<PeerMatch>(reply.answer);
    const int peer = match.peer.value();
    std::map<int, int>& peers = matches_[{caller.generation, group, match.number}];
    EXPECT_EQ(peers.emplace(rank, peer).first->second, peer);
    for (const auto& [one, other] : peers) {
      EXPECT_TRUE(one == rank || (one == peer && other == rank)) << "ranks " << one << ", " << rank;
    }
    pairs_ += rank != peer;
  }

  void CheckOrder(const AddressedOrder& addressed) {
    int receivers = 0;
    for (Process& process : processes_) {
      if (process.self != addressed.to) continue;
      EXPECT_TRUE(process.streaming);
      process.heard_of.insert(addressed.order.culprit->value());
      ++receivers;
    }
    EXPECT_EQ(receivers, 1) << "order to rank " << addressed.to.rank << ", who is not there";
    EXPECT_FALSE(addressed.order.reason.ok());
  }

  std::mt19937_64 random_;
  const int world_size_;
  std::vector<Process> processes_;
  CoordinatorState state_{kSilence};
  absl::Time now_ = absl::UnixEpoch();
  uint64_t last_call_ = 0;
  std::map<uint64_t, absl::Time> open_;           // calls without an answer, and their deadlines
  std::map<uint64_t, std::vector<int>> gathers_;  // members by call
  Generation last_generation_;
  int worlds_ = 0;
  int losses_ = 0;
  std::map<std::pair<Caller, CommunicatorId>, uint64_t> rounds_;  // asked for last
  std::map<uint64_t, std::pair<Caller, CommunicatorId>> finds_;   // by call
  // Peers by rank, by match.
  std::map<std::tuple<Generation, CommunicatorId, uint64_t>, std::map<int, int>> matches_;
  int pairs_ = 0;
};

TEST(CoordinatorRandomTest, EveryCallIsAnsweredOnceAndEveryLossIsTold) {
  int worlds = 0, losses = 0, pairs = 0;
  for (int seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    World world(seed);
    for (int step = 0; step < kSteps; ++step) world.Step();
    world.Finish();
    worlds += world.worlds();
    losses += world.losses();
    pairs += world.pairs();
  }
  // The lives were worth checking.
  EXPECT_GT(worlds, kSeeds);
  EXPECT_GT(losses, kSeeds / 2);
  EXPECT_GT(pairs, kSeeds / 2);
}

}  // namespace
}  // namespace pelton
