// One direction of one pair of ranks, for send and recv.
#ifndef PELTON_COMM_TRANSPORT_SHM_CHANNEL_H_
#define PELTON_COMM_TRANSPORT_SHM_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "comm/transport/shm/abort_words.h"
#include "core/actor/sync_policy.h"

namespace pelton::shm {

// The sender writes each post into any entry whose last one was answered, and the entry's number
// into `order_`; the receiver reads the numbers in that order, takes the posts by tag and answers
// each in its entry. So a post that nobody takes for long occupies one entry, and the others go
// round. A number is read before its entry is answered, so there are never more unread ones than
// entries.
//
// Why neither side reads what the other is writing. A post, its entry's number and the pending
// answer are written before `posted_`, with which they become visible. An entry is written again
// only once the sender has found its answer, and the receiver, which answers after it has read the
// post, does not look there any more. A place in `order_` is written again kEntries posts later.
// Had its number not been read by then, none of these posts would be answered, because numbers are
// read in turn, and no entry would be free. channel_model_test.cc runs this in every order.
//
// Threads: one sender and one receiver, of different processes. Owns: nothing; it lies in shared
// memory, which is 0 at first. `Cell<T>` is memory with Get and Set.
template <typename Sync, template <typename> typename Cell, typename Record, size_t kEntries>
class BasicChannel {
 public:
  enum Answer : uint32_t { kPending, kReceived, kDifferent };

  // The sender -----------------------------------------------------------------------------------

  // Shows `post` in `entry`, which is free, as the one after `posted` others. Ring its peer then.
  void Post(uint64_t posted, uint16_t entry, const Record& post) {
    Entry& taken = entries_[entry];
    taken.post.Set(post);
    taken.answer.store(kPending, std::memory_order_relaxed);
    order_[posted % kEntries].Set(entry);
    posted_.store(posted + 1);  // shows all of the above
  }
  // Unless it is kPending, the entry is free again.
  uint32_t AnswerIn(uint16_t entry) const { return entries_[entry].answer.load(); }
  // The receive that answered, until the entry is used again.
  decltype(auto) ReplyIn(uint16_t entry) const { return entries_[entry].reply.Get(); }

  // The receiver ---------------------------------------------------------------------------------

  // Sends ever posted.
  uint64_t posted() const { return posted_.load(); }
  // Of post `index`, which was posted and whose entry was not answered. A peer's mistake leads to
  // another entry, and to nothing worse.
  uint16_t EntryOf(uint64_t index) const {
    return static_cast<uint16_t>(order_[index % kEntries].Get() % kEntries);
  }
  decltype(auto) PostIn(uint16_t entry) const { return entries_[entry].post.Get(); }
  // Gives the entry back. Ring its peer then.
  void AnswerPost(uint16_t entry, Answer answer, const Record& reply) {
    entries_[entry].reply.Set(reply);
    entries_[entry].answer.store(answer);  // shows the reply
  }

 private:
  struct Entry {
    alignas(kCacheLineBytes) Cell<Record> post;
    alignas(kCacheLineBytes) Cell<Record> reply;
    typename Sync::template Atomic<uint32_t> answer{kPending};
  };

  alignas(kCacheLineBytes) typename Sync::template Atomic<uint64_t> posted_{0};
  Cell<uint16_t> order_[kEntries];  // entries of the posts, as a ring
  Entry entries_[kEntries];
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_CHANNEL_H_
