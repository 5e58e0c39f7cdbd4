#include "backend/peer_selector.h"

#include <algorithm>
#include <utility>

#include "core/base/clock.h"

namespace pelton {
namespace {

// A rank whose questions are answered slowly asks for the latest step, not for all it has missed.
constexpr size_t kMostWanted = 2;

size_t PlaceOf(const std::vector<Rank>& members, Rank rank) {
  return static_cast<size_t>(std::find(members.begin(), members.end(), rank) - members.begin());
}

}  // namespace

PeerSelector::PeerSelector(Control& control, SelectPeersRequest question, Rank self)
    : control_(control),
      question_(std::move(question)),
      place_(PlaceOf(question_.members, self)),
      thread_(&PeerSelector::Run, this) {}

PeerSelector::~PeerSelector() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

std::optional<Rank> PeerSelector::PeerAt(uint64_t step) {
  MutexLock lock(&mutex_);
  answers_.erase(answers_.begin(), answers_.lower_bound(step));
  const auto found = answers_.find(step);
  if (found == answers_.end()) return std::nullopt;
  return found->second;
}

void PeerSelector::Prefetch(uint64_t step) {
  MutexLock lock(&mutex_);
  wanted_.push_back(step);
  if (wanted_.size() > kMostWanted) wanted_.pop_front();
  changed_.SignalAll();
}

void PeerSelector::Run() {
  SelectPeersRequest question = question_;
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (wanted_.empty() && !stopping_) changed_.Wait(&mutex_);
      if (stopping_) return;
      question.step = wanted_.front();
      wanted_.pop_front();
    }
    const absl::StatusOr<Matching> matching =
        control_.SelectPeers(question, Clock::Real().Now() + kAnswerTimeout);
    const std::optional<Rank> peer = matching.ok() ? PeerIn(*matching) : std::nullopt;
    MutexLock lock(&mutex_);
    if (peer.has_value()) answers_[question.step] = *peer;
  }
}

std::optional<Rank> PeerSelector::PeerIn(const Matching& matching) const {
  if (matching.size() != question_.members.size()) return std::nullopt;
  const int32_t peer = matching[place_];
  if (peer < 0 || static_cast<size_t>(peer) >= matching.size()) return std::nullopt;
  if (matching[static_cast<size_t>(peer)] != static_cast<int32_t>(place_)) return std::nullopt;
  return Rank(peer);
}

}  // namespace pelton
