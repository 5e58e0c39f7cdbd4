#include "comm/transport/sim/network.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"

namespace pelton {

bool EventQueue::IsLater(const Entry& a, const Entry& b) {
  return a.at != b.at ? a.at > b.at : a.order > b.order;
}

void EventQueue::Add(absl::Time at, SimEvent event) {
  heap_.push_back({at, next_order_++, std::move(event)});
  std::push_heap(heap_.begin(), heap_.end(), IsLater);
}

std::optional<SimEvent> EventQueue::PopDue(absl::Time now) {
  if (NextTime() > now || heap_.empty()) return std::nullopt;
  std::pop_heap(heap_.begin(), heap_.end(), IsLater);
  SimEvent event = std::move(heap_.back().event);
  heap_.pop_back();
  return event;
}

void EventQueue::Cancel(const SimGroup* group) {
  std::erase_if(heap_, [group](const Entry& entry) { return entry.event.group == group; });
  std::make_heap(heap_.begin(), heap_.end(), IsLater);
}

Network::Network(WorldSize world_size, const LinkModel& model, uint64_t seed)
    : world_size_(world_size.value()), unused_{.model = model}, random_(seed) {}

const Network::LinkState& Network::At(Link link) const {
  const auto found = links_.find(IndexOf(link));
  return found == links_.end() ? unused_ : found->second;
}

uint64_t Network::IndexOf(Link link) const {
  PELTON_CHECK(link.from.value() >= 0 && link.from.value() < world_size_) << link.from;
  PELTON_CHECK(link.to.value() >= 0 && link.to.value() < world_size_) << link.to;
  return static_cast<uint64_t>(link.from.value()) * static_cast<uint64_t>(world_size_) +
         static_cast<uint64_t>(link.to.value());
}

absl::Duration Network::Jitter(absl::Duration bound) {
  const int64_t nanoseconds = absl::ToInt64Nanoseconds(bound);
  if (nanoseconds <= 0) return absl::ZeroDuration();
  return absl::Nanoseconds(static_cast<int64_t>(random_() % static_cast<uint64_t>(nanoseconds)));
}

Network::Times Network::Transfer(Link link, uint64_t bytes, absl::Time ready) {
  if (link.from == link.to) return {ready, ready};
  LinkState& state = At(link);
  absl::Time left = std::max(ready, state.free_at);
  if (state.model.bytes_per_second > 0) {
    left += absl::Seconds(static_cast<double>(bytes) / state.model.bytes_per_second);
  }
  const absl::Time arrived =
      std::max(left + state.model.latency + Jitter(state.model.jitter), state.last_arrival);
  state.free_at = left;
  state.last_arrival = arrived;
  state.bytes += bytes;
  return {left, arrived};
}

absl::Time Network::NoticeTime(Link link, absl::Time now) const {
  return link.from == link.to ? now : now + At(link).model.latency;
}

uint64_t Network::TotalBytesSent() const {
  uint64_t total = 0;
  for (const auto& [index, link] : links_) total += link.bytes;
  return total;
}

}  // namespace pelton
