// The messages of neighbour operations from one rank to another, in shared memory.
#ifndef PELTON_COMM_TRANSPORT_SHM_EDGE_QUEUE_H_
#define PELTON_COMM_TRANSPORT_SHM_EDGE_QUEUE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

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

// One direction of one pair of ranks. The sender writes posts into a ring; the receiver takes each
// out as it comes, whether its operation is there or not, so that a post nobody waits for holds up
// no other one (EDGE-1). Tensors of up to kEntryBytes are copied into an entry; the receiver reads
// larger ones out of the sender's memory. An entry belongs to the sender again when it is answered.
struct EdgeQueue {
  // At least as many as a rank has operations in flight, so that what is launched is posted.
  static constexpr uint32_t kDepth = limits::kMaxOperationsInFlight;
  static constexpr size_t kEntryBytes = size_t{16} << 10;
  enum Answer : uint32_t { kPending, kReceived, kDifferent };

  struct Post {
    alignas(64) std::atomic<uint32_t> number;  // 1 + the posts before it, written last
    EdgeMessage message;
  };
  struct Entry {
    alignas(64) std::atomic<uint32_t> answer;
    std::atomic<uint64_t> read_bytes;  // of a tensor in the sender's memory
    alignas(64) Operation reply;       // what kDifferent differs from
  };
  struct Tensor {
    alignas(64) std::byte data[kEntryBytes];
  };

  alignas(64) std::atomic<uint32_t> taken;  // posts that the receiver has taken out
  Post posts[kDepth];
  Entry entries[kDepth];
  Tensor tensors[kDepth];  // take memory when they are used
};
static_assert(sizeof(EdgeQueue::Post) == 64, "a small message is one cache line");
static_assert(EdgeQueue::kDepth <= 256, "the number of an entry is a byte");

// The sender's end. Threads: one at a time. Owns: which entries are free.
class EdgeSender {
 public:
  explicit EdgeSender(EdgeQueue& queue) : queue_(queue) {}

  // Posts `message` with the `size_bytes` at `data`, which it copies unless the place is kInMemory;
  // sets its entry. `waits`: an answer is waited for, and the entry stays this message's until
  // FreeEntry. False: there is no room now.
  bool Post(EdgeMessage& message, const std::byte* data, size_t size_bytes, bool waits);
  const EdgeQueue::Entry& entry(uint8_t entry) const { return queue_.entries[entry]; }
  void FreeEntry(uint8_t entry) { free_.push_back(entry); }

 private:
  bool HasRoom();
  bool TakeEntry(uint8_t& entry);

  EdgeQueue& queue_;
  uint32_t posted_ = 0;
  uint32_t taken_ = 0;           // as far as was looked at
  uint16_t unused_ = 0;          // the first entry that never was used
  std::vector<uint8_t> free_;    // the last one freed is used first: it may still be in the cache
  std::deque<uint8_t> unasked_;  // on their way, and nobody waits for their answer
};

// The receiver's end. Threads: one at a time. Owns: how far it has read.
class EdgeReceiver {
 public:
  explicit EdgeReceiver(EdgeQueue& queue) : queue_(queue) {}

  // The next post; null: none has come. It is valid until Pop.
  const EdgeMessage* Next() const;
  void Pop();
  const std::byte* tensor(uint8_t entry) const { return queue_.tensors[entry].data; }
  void ShowRead(uint8_t entry, uint64_t size_bytes) {
    queue_.entries[entry].read_bytes.store(size_bytes);
  }
  void Answer(uint8_t entry, EdgeQueue::Answer answer, const Operation& reply);

 private:
  static constexpr uint32_t kDepth = EdgeQueue::kDepth;

  EdgeQueue& queue_;
  uint32_t taken_ = 0;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_EDGE_QUEUE_H_
