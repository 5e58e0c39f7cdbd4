// What travels through mailboxes: pooled nodes that carry a link, a kind and a payload.
#ifndef PELTON_CORE_ACTOR_MESSAGE_H_
#define PELTON_CORE_ACTOR_MESSAGE_H_

#include <new>
#include <utility>

#include "absl/status/status.h"
#include "core/actor/block_pool.h"

namespace pelton::internal {

class ActorCell;
struct MessageNode;

// Which lane of a mailbox a message takes.
enum class Lane : unsigned char {
  kUser,
  kSystem,  // overtakes the others and needs no room
  kNotice,  // comes in order with the user lane, but needs no room
};

// One per (actor type, message type), found through the node: a single indirect call dispatches.
struct MessageKind {
  // Handles the node in a turn of the actor and frees it. A status that is not OK ends the actor.
  absl::Status (*handle)(ActorCell& cell, MessageNode* node);
  // Frees the node unhandled: its actor is dead.
  void (*discard)(MessageNode* node);
  Lane lane;
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

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_MESSAGE_H_
