#include "comm/transport/sim/event_queue.h"

#include <algorithm>
#include <utility>

namespace pelton {

bool EventQueue::IsLater(const Entry& a, const Entry& b) {
  return a.at != b.at ? a.at > b.at : a.order > b.order;
}

void EventQueue::Schedule(absl::Time at, SimEvent event) {
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

}  // namespace pelton
