// The messages of neighbour operations from one rank to another, in shared memory.
#ifndef PELTON_COMM_TRANSPORT_SHM_EDGE_LANE_H_
#define PELTON_COMM_TRANSPORT_SHM_EDGE_LANE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "comm/transport/shm/abort_words.h"
#include "comm/transport/shm/board.h"
#include "core/actor/sync_policy.h"
#include "core/base/limits.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// What one end of an edge tells the other. Tensors of up to kPostBytes travel in it, so that a
// small message is one cache line that is written once and read once.
// Threads: a value. Owns: nothing.
struct EdgeMessage {
  // Where the tensor is. All but kInPost have a slot, where the receiver answers.
  enum Place : uint8_t { kInPost, kInPostToAnswer, kInSlot, kInMemory };
  static constexpr size_t kPostBytes = 24;
  struct Where {
    RegionId region;
    uint64_t offset;
  };

  int32_t tag = 0;
  int32_t bucket = -1;
  int32_t shape_mark = 0;
  DType dtype = DType::kFloat32;
  uint8_t flags = 0;  // FlagsOf the operation
  Place place = kInPost;
  uint8_t slot = 0;
  uint64_t count = 0;
  double weight = 1;
  union {
    std::byte bytes[kPostBytes];  // kInPost
    Where where;                  // kInMemory: of the sender
  };

  EdgeMessage() : where{} {}
  bool has_slot() const { return place != kInPost; }
};

// A tensor of up to kSlotBytes on its way. Threads: as the lane says. Owns: nothing.
class EdgeTensor {
 public:
  static constexpr size_t kSlotBytes = size_t{16} << 10;

  void Write(const std::byte* from, size_t size_bytes) { std::memcpy(data_, from, size_bytes); }
  const std::byte* Read() const { return data_; }

 private:
  alignas(kCacheLineBytes) std::byte data_[kSlotBytes];
};

// One direction of one pair of ranks. The sender writes posts into a ring; the receiver takes each
// out as it comes, whether its operation is there or not, so that a post nobody waits for holds up
// no other one (EDGE-1). Tensors of up to kSlotBytes are copied into a slot; the receiver reads
// larger ones out of the sender's memory. A slot belongs to the sender again when it is answered.
//
// Why neither side reads what the other is writing. A message, its tensor and the pending answer
// are written before `number`, with which they become visible. A place in the ring is written again
// once the sender has found in `taken` that its last post was taken out, a slot once the sender has
// found its answer; the receiver counts and answers after it has read what lay there.
// edge_lane_model_test.cc runs this in every order.
//
// Threads: one sender and one receiver, of different processes. Owns: nothing; it lies in shared
// memory, which is 0 at first. `Cell<T>` is memory with Get and Set.
template <typename Sync, template <typename> typename Cell, typename Tensor, uint32_t kPosts>
struct BasicEdgeLane {
  template <typename T>
  using Atomic = typename Sync::template Atomic<T>;
  static constexpr uint32_t kDepth = kPosts;
  static constexpr size_t kSlotBytes = EdgeTensor::kSlotBytes;
  enum Answer : uint32_t { kPending, kReceived, kDifferent };

  struct Post {
    alignas(kCacheLineBytes) Atomic<uint32_t> number{0};  // 1 + the posts before it, written last
    Cell<EdgeMessage> message;
  };
  struct Slot {
    alignas(kCacheLineBytes) Atomic<uint32_t> answer{kPending};
    Atomic<uint64_t> read_bytes{0};                  // of a tensor in the sender's memory
    alignas(kCacheLineBytes) Cell<Operation> reply;  // what kDifferent differs from
  };

  alignas(kCacheLineBytes) Atomic<uint32_t> taken{0};  // posts that the receiver has taken out
  Post posts[kDepth];
  Slot slots[kDepth];
  Tensor tensors[kDepth];  // take memory when they are used
};
static_assert(limits::kMaxOperationsInFlight <= 256, "the number of a slot is a byte");

// The sender's end. Threads: one at a time. Owns: which slots are free.
template <typename Lane>
class BasicEdgeSender {
 public:
  explicit BasicEdgeSender(Lane& lane) : lane_(lane) {}

  // Posts `message` with the `size_bytes` at `data`, which it copies unless the place is kInMemory;
  // sets its slot. `waits`: an answer is waited for, and the slot stays this message's until
  // FreeSlot. False: there is no room now.
  bool Post(EdgeMessage& message, const std::byte* data, size_t size_bytes, bool waits) {
    if (!HasRoom()) return false;
    if (waits && !message.has_slot()) message.place = EdgeMessage::kInPostToAnswer;
    if (message.has_slot()) {
      if (!TakeSlot(message.slot)) return false;
      typename Lane::Slot& slot = lane_.slots[message.slot];
      slot.read_bytes.store(0, std::memory_order_relaxed);
      slot.answer.store(Lane::kPending, std::memory_order_relaxed);
      if (!waits) unasked_.push_back(message.slot);
    }
    if (message.place == EdgeMessage::kInSlot) {
      lane_.tensors[message.slot].Write(data, size_bytes);
    } else if (message.place != EdgeMessage::kInMemory && size_bytes > 0) {
      std::memcpy(message.bytes, data, size_bytes);
    }
    typename Lane::Post& post = lane_.posts[posted_ % Lane::kDepth];
    post.message.Set(message);
    post.number.store(++posted_);  // shows all of the above; see Context::Ring
    return true;
  }
  const typename Lane::Slot& slot(uint8_t slot) const { return lane_.slots[slot]; }
  void FreeSlot(uint8_t slot) { free_.push_back(slot); }

 private:
  bool HasRoom() {
    if (posted_ - taken_ < Lane::kDepth) return true;
    taken_ = lane_.taken.load();
    return posted_ - taken_ < Lane::kDepth;
  }
  // Receivers mostly answer in order, so that a look at the oldest one is enough.
  bool TakeSlot(uint8_t& slot) {
    while (!unasked_.empty() && lane_.slots[unasked_.front()].answer.load() != Lane::kPending) {
      free_.push_back(unasked_.front());
      unasked_.pop_front();
    }
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
      return true;
    }
    if (unused_ == Lane::kDepth) return false;
    slot = static_cast<uint8_t>(unused_++);
    return true;
  }

  Lane& lane_;
  uint32_t posted_ = 0;
  uint32_t taken_ = 0;           // as far as was looked at
  uint16_t unused_ = 0;          // the first slot that never was used
  std::vector<uint8_t> free_;    // the last one freed is used first: it may still be in the cache
  std::deque<uint8_t> unasked_;  // on their way, and nobody waits for their answer
};

// The receiver's end. Threads: one at a time. Owns: how far it has read.
template <typename Lane>
class BasicEdgeReceiver {
 public:
  explicit BasicEdgeReceiver(Lane& lane) : lane_(lane) {}

  // The next post; null: none has come. It is valid until Pop.
  const EdgeMessage* Next() const {
    const typename Lane::Post& post = lane_.posts[taken_ % Lane::kDepth];
    return post.number.load() == taken_ + 1 ? &post.message.Get() : nullptr;
  }
  // Sequentially consistent, because a sender that waits for room may be about to park:
  // Context::Ring reads `parked` after this, and a processor may let that read overtake a store
  // that is only a release. The sender would then see no room, and nobody would wake it.
  void Pop() { lane_.taken.store(++taken_); }
  decltype(auto) tensor(uint8_t slot) const { return lane_.tensors[slot].Read(); }
  void ShowRead(uint8_t slot, uint64_t size_bytes) {
    lane_.slots[slot].read_bytes.store(size_bytes);
  }
  void Answer(uint8_t slot, typename Lane::Answer answer, const Operation& reply) {
    typename Lane::Slot& answered = lane_.slots[slot];
    if (answer == Lane::kDifferent) answered.reply.Set(reply);
    answered.answer.store(answer);
  }

 private:
  Lane& lane_;
  uint32_t taken_ = 0;
};

// At least as deep as a rank has operations in flight, so that what is launched is posted.
using EdgeLane =
    BasicEdgeLane<internal::RealSync, SharedCell, EdgeTensor, limits::kMaxOperationsInFlight>;
using EdgeSender = BasicEdgeSender<EdgeLane>;
using EdgeReceiver = BasicEdgeReceiver<EdgeLane>;
static_assert(sizeof(EdgeLane::Post) == 64, "a small message is one cache line");

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_EDGE_LANE_H_
