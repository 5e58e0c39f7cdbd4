// The messages of neighbour operations from one rank to another, in shared memory.
#ifndef PELTON_COMM_TRANSPORT_SHM_EDGE_QUEUE_H_
#define PELTON_COMM_TRANSPORT_SHM_EDGE_QUEUE_H_

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
  // Where the tensor is. All but kInPost have an entry, where the receiver answers.
  enum Place : uint8_t { kInPost, kInPostToAnswer, kInEntry, kInMemory };
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
  uint8_t entry = 0;
  uint64_t count = 0;
  double weight = 1;
  union {
    std::byte bytes[kPostBytes];  // kInPost
    Where where;                  // kInMemory: of the sender
  };

  EdgeMessage() : where{} {}
  bool has_entry() const { return place != kInPost; }
};

// A tensor of up to kEntryBytes on its way. Threads: as the queue says. Owns: nothing.
class EdgeTensor {
 public:
  static constexpr size_t kEntryBytes = size_t{16} << 10;

  void Write(const std::byte* from, size_t size_bytes) { std::memcpy(data_, from, size_bytes); }
  const std::byte* Read() const { return data_; }

 private:
  alignas(kCacheLineBytes) std::byte data_[kEntryBytes];
};

// One direction of one pair of ranks. The sender writes posts into a ring; the receiver takes each
// out as it comes, whether its operation is there or not, so that a post nobody waits for holds up
// no other one (EDGE-1). Tensors of up to kEntryBytes are copied into an entry; the receiver reads
// larger ones out of the sender's memory. An entry belongs to the sender again when it is answered.
//
// Why neither side reads what the other is writing. A message, its tensor and the pending answer
// are written before `number`, with which they become visible. A place in the ring is written again
// once the sender has found in `taken` that its last post was taken out, an entry once the sender
// has found its answer; the receiver counts and answers after it has read what lay there.
// edge_queue_model_test.cc runs this in every order.
//
// Threads: one sender and one receiver, of different processes. Owns: nothing; it lies in shared
// memory, which is 0 at first. `Cell<T>` is memory with Get and Set.
template <typename Sync, template <typename> typename Cell, typename Tensor, uint32_t kPosts>
struct BasicEdgeQueue {
  template <typename T>
  using Atomic = typename Sync::template Atomic<T>;
  static constexpr uint32_t kDepth = kPosts;
  static constexpr size_t kEntryBytes = EdgeTensor::kEntryBytes;
  enum Answer : uint32_t { kPending, kReceived, kDifferent };

  struct Post {
    alignas(kCacheLineBytes) Atomic<uint32_t> number{0};  // 1 + the posts before it, written last
    Cell<EdgeMessage> message;
  };
  struct Entry {
    alignas(kCacheLineBytes) Atomic<uint32_t> answer{kPending};
    Atomic<uint64_t> read_bytes{0};                  // of a tensor in the sender's memory
    alignas(kCacheLineBytes) Cell<Operation> reply;  // what kDifferent differs from
  };

  alignas(kCacheLineBytes) Atomic<uint32_t> taken{0};  // posts that the receiver has taken out
  Post posts[kDepth];
  Entry entries[kDepth];
  Tensor tensors[kDepth];  // take memory when they are used
};
static_assert(limits::kMaxOperationsInFlight <= 256, "the number of an entry is a byte");

// The sender's end. Threads: one at a time. Owns: which entries are free.
template <typename Queue>
class BasicEdgeSender {
 public:
  explicit BasicEdgeSender(Queue& queue) : queue_(queue) {}

  // Posts `message` with the `size_bytes` at `data`, which it copies unless the place is kInMemory;
  // sets its entry. `waits`: an answer is waited for, and the entry stays this message's until
  // FreeEntry. False: there is no room now.
  bool Post(EdgeMessage& message, const std::byte* data, size_t size_bytes, bool waits) {
    if (!HasRoom()) return false;
    if (waits && !message.has_entry()) message.place = EdgeMessage::kInPostToAnswer;
    if (message.has_entry()) {
      if (!TakeEntry(message.entry)) return false;
      typename Queue::Entry& entry = queue_.entries[message.entry];
      entry.read_bytes.store(0, std::memory_order_relaxed);
      entry.answer.store(Queue::kPending, std::memory_order_relaxed);
      if (!waits) unasked_.push_back(message.entry);
    }
    if (message.place == EdgeMessage::kInEntry) {
      queue_.tensors[message.entry].Write(data, size_bytes);
    } else if (message.place != EdgeMessage::kInMemory && size_bytes > 0) {
      std::memcpy(message.bytes, data, size_bytes);
    }
    typename Queue::Post& post = queue_.posts[posted_ % Queue::kDepth];
    post.message.Set(message);
    post.number.store(++posted_);  // shows all of the above; see Context::Ring
    return true;
  }
  const typename Queue::Entry& entry(uint8_t entry) const { return queue_.entries[entry]; }
  void FreeEntry(uint8_t entry) { free_.push_back(entry); }

 private:
  bool HasRoom() {
    if (posted_ - taken_ < Queue::kDepth) return true;
    taken_ = queue_.taken.load();
    return posted_ - taken_ < Queue::kDepth;
  }
  // Receivers mostly answer in order, so that a look at the oldest one is enough.
  bool TakeEntry(uint8_t& entry) {
    while (!unasked_.empty() && queue_.entries[unasked_.front()].answer.load() != Queue::kPending) {
      free_.push_back(unasked_.front());
      unasked_.pop_front();
    }
    if (!free_.empty()) {
      entry = free_.back();
      free_.pop_back();
      return true;
    }
    if (unused_ == Queue::kDepth) return false;
    entry = static_cast<uint8_t>(unused_++);
    return true;
  }

  Queue& queue_;
  uint32_t posted_ = 0;
  uint32_t taken_ = 0;           // as far as was looked at
  uint16_t unused_ = 0;          // the first entry that never was used
  std::vector<uint8_t> free_;    // the last one freed is used first: it may still be in the cache
  std::deque<uint8_t> unasked_;  // on their way, and nobody waits for their answer
};

// The receiver's end. Threads: one at a time. Owns: how far it has read.
template <typename Queue>
class BasicEdgeReceiver {
 public:
  explicit BasicEdgeReceiver(Queue& queue) : queue_(queue) {}

  // The next post; null: none has come. It is valid until Pop.
  const EdgeMessage* Next() const {
    const typename Queue::Post& post = queue_.posts[taken_ % Queue::kDepth];
    return post.number.load() == taken_ + 1 ? &post.message.Get() : nullptr;
  }
  // Sequentially consistent, because a sender that waits for room may be about to park:
  // Context::Ring reads `parked` after this, and a processor may let that read overtake a store
  // that is only a release. The sender would then see no room, and nobody would wake it.
  void Pop() { queue_.taken.store(++taken_); }
  decltype(auto) tensor(uint8_t entry) const { return queue_.tensors[entry].Read(); }
  void ShowRead(uint8_t entry, uint64_t size_bytes) {
    queue_.entries[entry].read_bytes.store(size_bytes);
  }
  void Answer(uint8_t entry, typename Queue::Answer answer, const Operation& reply) {
    typename Queue::Entry& answered = queue_.entries[entry];
    if (answer == Queue::kDifferent) answered.reply.Set(reply);
    answered.answer.store(answer);
  }

 private:
  Queue& queue_;
  uint32_t taken_ = 0;
};

// At least as deep as a rank has operations in flight, so that what is launched is posted.
using EdgeQueue =
    BasicEdgeQueue<internal::RealSync, SharedCell, EdgeTensor, limits::kMaxOperationsInFlight>;
using EdgeSender = BasicEdgeSender<EdgeQueue>;
using EdgeReceiver = BasicEdgeReceiver<EdgeQueue>;
static_assert(sizeof(EdgeQueue::Post) == 64, "a small message is one cache line");

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_EDGE_QUEUE_H_
