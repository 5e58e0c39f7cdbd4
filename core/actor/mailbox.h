// An actor's mailbox and what travels through it. Messages are pooled nodes that carry a link, a
// kind and a payload. The mailbox is an intrusive lock-free multi-producer queue whose head word
// also says whether the actor has a turn coming, so that one compare-and-swap both sends and
// decides who schedules.
#ifndef PELTON_CORE_ACTOR_MAILBOX_H_
#define PELTON_CORE_ACTOR_MAILBOX_H_

#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/status/status.h"
#include "core/actor/block_pool.h"
#include "core/actor/sync_policy.h"

namespace pelton::internal {

class ActorCell;
struct MessageNode;

// How a message passes through a mailbox.
enum class MessageClass : unsigned char {
  kUser,
  kSystem,  // overtakes the others and needs no room
  kNotice,  // comes in order with a user's messages, but needs no room
};

// One per (actor type, message type), found through the node: a single indirect call dispatches.
struct MessageKind {
  // Handles the node in a turn of the actor and frees it. A status that is not OK ends the actor.
  absl::Status (*handle)(ActorCell& cell, MessageNode* node);
  // Frees the node unhandled: its actor is dead.
  void (*discard)(MessageNode* node);
  MessageClass message_class;
};

struct MessageNode {
  MessageNode* next;
  const MessageKind* kind;
};

template <typename Payload>
struct MessageOf : MessageNode {
  Payload payload;
};

// A node with `payload`, from the pool. A payload of 48 bytes makes it one cache line.
template <typename Payload>
MessageOf<Payload>* NewMessage(const MessageKind* kind, Payload payload) {
  static_assert(alignof(Payload) <= BlockPool::kSmallestBytes);
  void* block = BlockPool::Allocate(sizeof(MessageOf<Payload>));
  return new (block) MessageOf<Payload>{{nullptr, kind}, std::move(payload)};
}

template <typename Payload>
void FreeMessage(MessageNode* node) {
  auto* message = static_cast<MessageOf<Payload>*>(node);
  message->~MessageOf<Payload>();
  BlockPool::Free(message, sizeof(MessageOf<Payload>));
}

// Moves the payload out and frees the node, so that a handler that throws leaks nothing and one
// that sends finds the block in its cache.
template <typename Payload>
Payload TakePayload(MessageNode* node) {
  Payload payload = std::move(static_cast<MessageOf<Payload>*>(node)->payload);
  FreeMessage<Payload>(node);
  return payload;
}

// A first-in-first-out list of nodes.
// Threads: one at a time. Owns: nothing; whoever drops the list discards its nodes first.
class MessageList {
 public:
  bool empty() const { return head_ == nullptr; }
  MessageNode* Pop() {
    MessageNode* node = head_;
    if (node != nullptr) head_ = node->next;
    return node;
  }
  void Append(MessageNode* node) { Append(node, node); }
  // Appends the chain from `first` to `last`.
  void Append(MessageNode* first, MessageNode* last) {
    last->next = nullptr;
    (head_ == nullptr ? head_ : tail_->next) = first;
    tail_ = last;
  }
  void DiscardAll() {
    while (MessageNode* node = Pop()) node->kind->discard(node);
  }

 private:
  MessageNode* head_ = nullptr;
  MessageNode* tail_ = nullptr;  // undefined while empty
};

enum class PushResult {
  kQueued,  // the actor has a turn coming or running
  kWake,    // the pusher now holds the turn and must schedule the actor
  kClosed,  // the actor is dead; the node stays with the caller
};

// The word is one of: idle (nobody holds the turn), closed, null (a holder, no news) or a stack of
// nodes (a holder, and news for it). At most one thread or queue holds the turn at any time.
//
// Room is counted apart: a message of class kUser needs one unit of it, reserved before the push
// and returned when the message has been handled.
// Threads: any, except where a method says "holder". Owns: the nodes in it.
template <typename Sync>
class BasicMailbox {
 public:
  explicit BasicMailbox(int32_t capacity) : room_(capacity * kUnit), capacity_(capacity) {}
  BasicMailbox(const BasicMailbox&) = delete;
  BasicMailbox& operator=(const BasicMailbox&) = delete;

  PushResult Push(MessageNode* node) { return Push(node, node); }

  // Pushes a chain that runs from the newest node to the oldest.
  PushResult Push(MessageNode* newest, MessageNode* oldest) {
    uintptr_t word = word_.load(std::memory_order_relaxed);
    do {
      if (word == kClosed) return PushResult::kClosed;
      oldest->next = word == kIdle ? nullptr : reinterpret_cast<MessageNode*>(word);
    } while (!word_.compare_exchange_weak(word, reinterpret_cast<uintptr_t>(newest),
                                          std::memory_order_acq_rel, std::memory_order_relaxed));
    return word == kIdle ? PushResult::kWake : PushResult::kQueued;
  }

  // Becomes the holder if nobody is.
  bool TryAcquire() {
    uintptr_t word = kIdle;
    return word_.load(std::memory_order_relaxed) == kIdle &&
           word_.compare_exchange_strong(word, kNone, std::memory_order_acquire);
  }

  // Holder: gives the turn back; false if there are messages, and the caller stays the holder.
  bool TryRelease() {
    uintptr_t word = kNone;
    return word_.compare_exchange_strong(word, kIdle, std::memory_order_acq_rel);
  }

  // Holder: whether messages came since the last drain.
  bool HasNews() const { return word_.load(std::memory_order_relaxed) != kNone; }

  // Holder: moves all that came, in order, to the end of the two lists; false if nothing did.
  bool Drain(MessageList& system, MessageList& user) {
    if (!HasNews()) return false;
    Split(word_.exchange(kNone, std::memory_order_acquire), system, user);
    return true;
  }

  // Holder: refuses all messages from now on and moves the last ones to the lists.
  void Close(MessageList& system, MessageList& user) {
    Split(word_.exchange(kClosed, std::memory_order_acq_rel), system, user);
  }
  bool closed() const { return word_.load(std::memory_order_acquire) == kClosed; }

  // Reserves `count` units of room, or none.
  bool TryReserve(int32_t count) {
    int32_t room = room_.load(std::memory_order_relaxed);
    do {
      if (room < count * kUnit) return false;
    } while (!room_.compare_exchange_weak(room, room - count * kUnit, std::memory_order_relaxed));
    return true;
  }
  // True if somebody waits for room: whoever is not the holder then sees to it that it looks.
  bool ReturnRoom(int32_t count) {
    return (room_.fetch_add(count * kUnit, std::memory_order_release) & kWanted) != 0;
  }
  // Holder: from now on somebody waits for room, or nobody does. Then it looks for room: what was
  // returned before it sees, and whoever returns some later sees that it is wanted, because both
  // are in one word.
  void SetRoomWanted(bool wanted) {
    if (wanted) {
      room_.fetch_or(kWanted, std::memory_order_relaxed);
    } else {
      room_.fetch_and(~kWanted, std::memory_order_relaxed);
    }
  }

  // Lets no one reserve any more; what is reserved stays so. Idempotent.
  void RefuseReservations() {
    if (!refusing()) room_.fetch_sub(kRefusal, std::memory_order_relaxed);
  }
  bool refusing() const { return room_.load(std::memory_order_relaxed) < -kRefusal / 2; }
  // Whether, after RefuseReservations, everything reserved has been returned.
  bool AllRoomReturned() const {
    return (room_.load(std::memory_order_acquire) | kWanted) ==
           ((capacity_ * kUnit - kRefusal) | kWanted);
  }
  int32_t capacity() const { return capacity_; }
  // Messages that wait, are being handled or have their room reserved; 0 once it refuses.
  int32_t used() const {
    const int32_t room = room_.load(std::memory_order_relaxed);
    return room < -kRefusal / 2 ? 0 : capacity_ - room / kUnit;
  }

 private:
  static constexpr uintptr_t kNone = 0;
  static constexpr uintptr_t kIdle = 1;
  static constexpr uintptr_t kClosed = 2;
  // In the word of the room.
  static constexpr int32_t kWanted = 1;
  static constexpr int32_t kUnit = 2;
  static constexpr int32_t kRefusal = 1 << 30;

  // The stack holds the newest on top: reversing it restores the order of arrival.
  static void Split(uintptr_t word, MessageList& system, MessageList& user) {
    if (word == kIdle || word == kClosed) return;
    MessageNode* first[2] = {nullptr, nullptr};
    MessageNode* last[2] = {nullptr, nullptr};
    for (auto* node = reinterpret_cast<MessageNode*>(word); node != nullptr;) {
      MessageNode* older = node->next;
      const unsigned queue = node->kind->message_class == MessageClass::kSystem ? 1 : 0;
      if (last[queue] == nullptr) last[queue] = node;
      node->next = first[queue];
      first[queue] = node;
      node = older;
    }
    if (first[1] != nullptr) system.Append(first[1], last[1]);
    if (first[0] != nullptr) user.Append(first[0], last[0]);
  }

  template <typename T>
  using Atomic = typename Sync::template Atomic<T>;
  Atomic<uintptr_t> word_{kNone};  // born held: its maker schedules the first turn
  Atomic<int32_t> room_;
  const int32_t capacity_;
};

using Mailbox = BasicMailbox<RealSync>;

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_MAILBOX_H_
