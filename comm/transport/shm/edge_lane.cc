#include "comm/transport/shm/edge_lane.h"

#include <cstring>

namespace pelton::shm {

bool EdgeSender::HasRoom() {
  if (posted_ - taken_ < EdgeLane::kDepth) return true;
  taken_ = lane_.taken.load();
  return posted_ - taken_ < EdgeLane::kDepth;
}

// Receivers mostly answer in order, so that a look at the oldest one is enough.
bool EdgeSender::TakeSlot(uint8_t& slot) {
  while (!unasked_.empty() && lane_.slots[unasked_.front()].answer.load() != EdgeLane::kPending) {
    free_.push_back(unasked_.front());
    unasked_.pop_front();
  }
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
    return true;
  }
  if (unused_ == EdgeLane::kDepth) return false;
  slot = static_cast<uint8_t>(unused_++);
  return true;
}

bool EdgeSender::Post(EdgeMessage& message, const std::byte* data, size_t size_bytes, bool waits) {
  if (!HasRoom()) return false;
  if (waits && !message.has_slot()) message.place = EdgeMessage::kInPostToAnswer;
  if (message.has_slot()) {
    if (!TakeSlot(message.slot)) return false;
    EdgeLane::Slot& slot = lane_.slots[message.slot];
    slot.read_bytes.store(0, std::memory_order_relaxed);
    slot.answer.store(EdgeLane::kPending, std::memory_order_relaxed);
    if (!waits) unasked_.push_back(message.slot);
  }
  if (message.place == EdgeMessage::kInSlot) {
    std::memcpy(lane_.tensors[message.slot].data, data, size_bytes);
  } else if (message.place != EdgeMessage::kInMemory && size_bytes > 0) {
    std::memcpy(message.bytes, data, size_bytes);
  }
  EdgeLane::Post& post = lane_.posts[posted_ % EdgeLane::kDepth];
  post.message = message;
  post.number.store(++posted_);  // shows all of the above; see Context::Ring
  return true;
}

const EdgeMessage* EdgeReceiver::Next() const {
  const EdgeLane::Post& post = lane_.posts[taken_ % kDepth];
  return post.number.load() == taken_ + 1 ? &post.message : nullptr;
}

// Sequentially consistent, because a sender that waits for room may be about to park: Context::Ring
// reads `parked` after this, and a processor may let that read overtake a store that is only a
// release. The sender would then see no room, and nobody would wake it.
void EdgeReceiver::Pop() { lane_.taken.store(++taken_); }

void EdgeReceiver::Answer(uint8_t slot, EdgeLane::Answer answer, const Operation& reply) {
  EdgeLane::Slot& answered = lane_.slots[slot];
  if (answer == EdgeLane::kDifferent) answered.reply = reply;
  answered.answer.store(answer);
}

}  // namespace pelton::shm
