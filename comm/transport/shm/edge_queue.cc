#include "comm/transport/shm/edge_queue.h"

#include <cstring>

namespace pelton::shm {

bool EdgeSender::HasRoom() {
  if (posted_ - taken_ < EdgeQueue::kDepth) return true;
  taken_ = queue_.taken.load();
  return posted_ - taken_ < EdgeQueue::kDepth;
}

// Receivers mostly answer in order, so that a look at the oldest one is enough.
bool EdgeSender::TakeEntry(uint8_t& entry) {
  while (!unasked_.empty() &&
         queue_.entries[unasked_.front()].answer.load() != EdgeQueue::kPending) {
    free_.push_back(unasked_.front());
    unasked_.pop_front();
  }
  if (!free_.empty()) {
    entry = free_.back();
    free_.pop_back();
    return true;
  }
  if (unused_ == EdgeQueue::kDepth) return false;
  entry = static_cast<uint8_t>(unused_++);
  return true;
}

bool EdgeSender::Post(EdgeMessage& message, const std::byte* data, size_t size_bytes, bool waits) {
  if (!HasRoom()) return false;
  if (waits && !message.has_entry()) message.place = EdgeMessage::kInPostToAnswer;
  if (message.has_entry()) {
    if (!TakeEntry(message.entry)) return false;
    EdgeQueue::Entry& entry = queue_.entries[message.entry];
    entry.read_bytes.store(0, std::memory_order_relaxed);
    entry.answer.store(EdgeQueue::kPending, std::memory_order_relaxed);
    if (!waits) unasked_.push_back(message.entry);
  }
  if (message.place == EdgeMessage::kInEntry) {
    std::memcpy(queue_.tensors[message.entry].data, data, size_bytes);
  } else if (message.place != EdgeMessage::kInMemory && size_bytes > 0) {
    std::memcpy(message.bytes, data, size_bytes);
  }
  EdgeQueue::Post& post = queue_.posts[posted_ % EdgeQueue::kDepth];
  post.message = message;
  post.number.store(++posted_);  // shows all of the above; see Context::Ring
  return true;
}

const EdgeMessage* EdgeReceiver::Next() const {
  const EdgeQueue::Post& post = queue_.posts[taken_ % kDepth];
  return post.number.load() == taken_ + 1 ? &post.message : nullptr;
}

// Sequentially consistent, because a sender that waits for room may be about to park: Context::Ring
// reads `parked` after this, and a processor may let that read overtake a store that is only a
// release. The sender would then see no room, and nobody would wake it.
void EdgeReceiver::Pop() { queue_.taken.store(++taken_); }

void EdgeReceiver::Answer(uint8_t entry, EdgeQueue::Answer answer, const Operation& reply) {
  EdgeQueue::Entry& answered = queue_.entries[entry];
  if (answer == EdgeQueue::kDifferent) answered.reply = reply;
  answered.answer.store(answer);
}

}  // namespace pelton::shm
