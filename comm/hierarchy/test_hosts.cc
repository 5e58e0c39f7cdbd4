#include "comm/hierarchy/test_hosts.h"

#include <algorithm>
#include <utility>

#include "comm/collectives/selection.h"
#include "comm/group.h"
#include "core/base/check.h"

namespace pelton::hierarchy {
namespace {

// What ranks tell each other when they wait is told within less.
constexpr absl::Duration kStill = absl::Milliseconds(100);
constexpr absl::Duration kTick = absl::Milliseconds(5);

using Communicators = std::vector<std::unique_ptr<Communicator>>;

Group WorldOf(size_t size) { return Group::World(WorldSize(static_cast<int32_t>(size))); }

Communicators Open(SimFabric& fabric, uint32_t id) {
  auto opened =
      fabric.OpenAll(CommunicatorId(id), WorldOf(static_cast<size_t>(fabric.world_size().value())));
  PELTON_CHECK(opened.ok()) << opened.status();
  return *std::move(opened);
}

}  // namespace

TestHosts::TestHosts(const std::vector<int32_t>& host_of, uint64_t seed)
    : layout_(WorldOf(host_of.size()), host_of) {
  const LinkModel slow{absl::Microseconds(20), 1e9, absl::Microseconds(seed == 0 ? 0 : 30)};
  const LinkModel fast{absl::Microseconds(1), 0, absl::Microseconds(seed == 0 ? 0 : 3)};
  between_ = std::make_unique<SimFabric>(WorldSize(size()), SimOptions{slow, seed, &clock_});
  std::vector<Ends> ends(size());
  Communicators users = Open(*between_, 1);
  Communicators collectives = Open(*between_, 2);
  for (int32_t rank = 0; rank < size(); ++rank) {
    ends[rank].users_between = std::move(users[rank]);
    ends[rank].collectives_between = std::move(collectives[rank]);
  }
  for (int32_t host = 0; host < layout_.host_count(); ++host) {
    const std::vector<int32_t>& ranks = layout_.RanksOn(host);
    inside_.push_back(std::make_unique<SimFabric>(WorldSize(static_cast<int32_t>(ranks.size())),
                                                  SimOptions{fast, seed, &clock_}));
    if (ranks.size() == 1) continue;
    users = Open(*inside_.back(), 1);
    collectives = Open(*inside_.back(), 2);
    for (size_t i = 0; i < ranks.size(); ++i) {
      ends[ranks[i]].users_inside = std::move(users[i]);
      ends[ranks[i]].collectives_inside = std::move(collectives[i]);
    }
  }
  for (int32_t rank = 0; rank < size(); ++rank) {
    communicators_.push_back(std::make_unique<HierarchicalCommunicator>(
        CommunicatorId(7), Generation(1), layout_, std::move(ends[rank]), SelectionTable::Default(),
        [](HierarchicalCommunicator*) {}, clock_));
  }
}

uint64_t TestHosts::BytesFrom(int32_t host) {
  uint64_t bytes = 0;
  for (const int32_t from : layout_.RanksOn(host)) {
    for (int32_t to = 0; to < size(); ++to) {
      if (!layout_.SameHost(from, to)) bytes += between_->BytesSent({Rank(from), Rank(to)});
    }
  }
  return bytes;
}

bool TestHosts::RunNextEvent() {
  absl::Time next = between_->NextEventTime();
  for (const auto& fabric : inside_) next = std::min(next, fabric->NextEventTime());
  if (next == absl::InfiniteFuture()) return false;
  clock_.now = std::max(clock_.now, next);
  between_->RunDue(clock_.now);
  for (const auto& fabric : inside_) fabric->RunDue(clock_.now);
  return true;
}

void TestHosts::RunAll() {
  for (absl::Time end = clock_.now + kStill; clock_.now < end; clock_.now += kTick) {
    while (RunWhatIsDue()) end = clock_.now + kStill;
  }
}

bool TestHosts::RunWhatIsDue() {
  bool moved = false;
  for (int32_t rank = 0; rank < size(); ++rank) {
    const auto& communicator = communicators_[rank];
    if (communicator == nullptr || stopped_.contains(rank)) continue;
    while (communicator->Progress()) moved = true;
  }
  return RunNextEvent() || moved;
}

std::vector<absl::Status> TestHosts::Run(
    const std::function<absl::StatusOr<Completion>(Communicator&)>& launch) {
  std::vector<absl::StatusOr<Completion>> completions;
  for (int32_t rank = 0; rank < size(); ++rank) completions.push_back(launch(at(rank)));
  RunAll();
  std::vector<absl::Status> statuses;
  for (int32_t rank = 0; rank < size(); ++rank) {
    if (!completions[rank].ok()) {
      statuses.push_back(completions[rank].status());
      continue;
    }
    const auto state = at(rank).Query(*completions[rank]);
    statuses.push_back(state.done ? state.status : absl::DeadlineExceededError("is not done"));
  }
  return statuses;
}

}  // namespace pelton::hierarchy
