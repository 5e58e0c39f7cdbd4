#include "core/actor/timer_queue.h"

#include <tuple>
#include <utility>

namespace pelton::internal {

void TimerQueue::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

Timer TimerQueue::Add(absl::Time when, ActorCell& target, MessageNode* node, bool* is_next) {
  MutexLock lock(&mutex_);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(entries_.size()));
    entries_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Entry& entry = entries_[index];
  entry.when = when;
  entry.sequence = ++sequence_;
  entry.target = RefPtr<ActorCell>::Share(&target);
  entry.node = node;
  heap_.push_back(index);
  SiftUp(static_cast<uint32_t>(heap_.size()) - 1);
  *is_next = heap_.front() == index;
  PublishNext();
  return Timer(RefPtr<TimerSource>::Share(this), index, entry.use);
}

bool TimerQueue::Cancel(uint32_t index, uint32_t use) {
  Entry removed;
  {
    MutexLock lock(&mutex_);
    if (entries_[index].use != use) return false;
    removed = Remove(entries_[index].place);
    PublishNext();
  }
  removed.node->kind->discard(removed.node);
  return true;
}

bool TimerQueue::DeliverDue(absl::Time now) {
  bool any = false;
  while (NextTime() <= now) {
    Entry due;
    {
      MutexLock lock(&mutex_);
      if (heap_.empty() || entries_[heap_.front()].when > now) break;
      due = Remove(0);
      PublishNext();
    }
    due.target->Post(due.node);
    any = true;
  }
  return any;
}

void TimerQueue::Clear() {
  std::vector<Entry> entries;
  {
    MutexLock lock(&mutex_);
    while (!heap_.empty()) entries.push_back(Remove(static_cast<uint32_t>(heap_.size()) - 1));
    PublishNext();
  }
  for (Entry& entry : entries) entry.node->kind->discard(entry.node);
}

bool TimerQueue::Before(uint32_t a, uint32_t b) const {
  return std::tie(entries_[a].when, entries_[a].sequence) <
         std::tie(entries_[b].when, entries_[b].sequence);
}

void TimerQueue::Place(uint32_t place, uint32_t entry) {
  heap_[place] = entry;
  entries_[entry].place = place;
}

void TimerQueue::SiftUp(uint32_t place) {
  const uint32_t entry = heap_[place];
  while (place > 0 && Before(entry, heap_[(place - 1) / 2])) {
    Place(place, heap_[(place - 1) / 2]);
    place = (place - 1) / 2;
  }
  Place(place, entry);
}

void TimerQueue::SiftDown(uint32_t place) {
  const uint32_t entry = heap_[place];
  const auto size = static_cast<uint32_t>(heap_.size());
  for (uint32_t child = 2 * place + 1; child < size; child = 2 * place + 1) {
    if (child + 1 < size && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], entry)) break;
    Place(place, heap_[child]);
    place = child;
  }
  Place(place, entry);
}

TimerQueue::Entry TimerQueue::Remove(uint32_t place) {
  const uint32_t index = heap_[place];
  const uint32_t last = heap_.back();
  heap_.pop_back();
  if (place < heap_.size()) {
    Place(place, last);
    SiftUp(place);
    SiftDown(entries_[last].place);
  }
  free_.push_back(index);
  Entry& entry = entries_[index];
  Entry removed = std::move(entry);
  entry = Entry{};
  entry.use = removed.use + 1;  // handles of this timer are stale from now on
  return removed;
}

void TimerQueue::PublishNext() {
  // A timer at the end of time never fires; one of long ago fires at once.
  int64_t nanos = kNever;
  if (!heap_.empty() && entries_[heap_.front()].when != absl::InfiniteFuture()) {
    nanos = absl::ToUnixNanos(entries_[heap_.front()].when);
  }
  next_nanos_.store(nanos, std::memory_order_release);
}

}  // namespace pelton::internal
