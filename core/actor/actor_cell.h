// The part of an actor that outlives it: what refs point to and executors run.
#ifndef PELTON_CORE_ACTOR_ACTOR_CELL_H_
#define PELTON_CORE_ACTOR_ACTOR_CELL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "core/actor/actor.h"
#include "core/actor/executor.h"
#include "core/actor/mailbox.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/spawn_options.h"

namespace pelton {

namespace internal {

using ActorFactory = absl::AnyInvocable<std::unique_ptr<Actor>()>;

// What is the same for all actors of a type.
struct ActorType {
  const std::type_info* type;
  bool polls;
};
template <typename A>
inline constexpr ActorType kActorType{&typeid(A), std::is_base_of_v<PollingActor, A>};

// What a turn came to.
struct TurnOutcome {
  bool dead = false;   // the cell has ended: drop the executor's count on it
  bool more = false;   // messages are left: schedule it again
  bool moved = false;  // handled a message or made progress in Poll
  PollResult poll = PollResult::kNothingToDo;
  absl::Duration max_park = absl::InfiniteDuration();  // set if poll is kIdle
};

// The children of an actor and what becomes of them; supervisor.h implements it.
// Threads: the turns of the parent. Owns: counts on the children.
class Family {
 public:
  virtual ~Family() = default;
  virtual bool empty() const = 0;
  virtual void Adopt(ActorCell& child) = 0;
  // Has all children stop by `deadline`, the youngest first in the queue.
  virtual void StopAll(absl::Time deadline) = 0;
  // A child has ended for good.
  virtual void OnDown(ActorCell& child) = 0;
  // A child has no incarnation and waits for Restart or Stop.
  virtual void OnSuspended(ActorCell& child, const absl::Status& why) = 0;
  // A child's new incarnation has begun.
  virtual void OnRestarted(ActorCell& child) = 0;
};

// Hears of an actor's end. Threads: Tell from the actor's last turn, or from who watches too late;
// wanted from the actor's turns. Owns: per subclass.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // Called once at most.
  virtual void Tell(Down down) = 0;
  // Whether anybody would still hear it.
  virtual bool wanted() const = 0;
};

// Waits for room in a mailbox.
// Threads: Serve and Refuse in the actor's turns, or Refuse by who comes too late. Owns: per
// subclass.
class RoomWaiter {
 public:
  virtual ~RoomWaiter() = default;
  // Takes room, if there is enough; true if it waits no more.
  virtual bool Serve(ActorCell& cell) = 0;
  // There will be none.
  virtual void Refuse(absl::Status why) = 0;
};

// Lives from Spawn until the actor is dead and the last ref is gone. Its mailbox's turn serialises
// everything that is not said to be for any thread.
// Threads: as said. Owns: the actor, its mailbox and its place in the tree.
class ActorCell {
 public:
  ActorCell(Executor& executor, const ActorType& type, RefPtr<ActorCell> parent,
            SpawnOptions options);

  // Any thread ---------------------------------------------------------------------------------

  void Ref() { refs_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // Hands over `node`, for which there is room reserved if it needs any; false if the actor is dead
  // and the node still the caller's.
  bool Deliver(MessageNode* node) { return DeliverChain(node, node); }
  bool DeliverChain(MessageNode* newest, MessageNode* oldest) {
    const PushResult result = mailbox_.Push(newest, oldest);
    if (result == PushResult::kWake) executor_.Schedule(*this);
    return result != PushResult::kClosed;
  }
  // Delivers, or discards.
  void Post(MessageNode* node) {
    if (!Deliver(node)) node->kind->discard(node);
  }
  // Errors: kNotFound: dead or stopping; kResourceExhausted: no room.
  absl::Status Reserve(int32_t count) {
    return mailbox_.TryReserve(count) ? absl::OkStatus() : WhyNoRoom();
  }
  // Returns reserved room that was not used.
  void ReturnRoom(int32_t count);
  // Has `waiter` served when there is room, after those that came before it.
  void AwaitRoom(std::unique_ptr<RoomWaiter> waiter);
  absl::Status DeadError() const;
  bool alive() const { return !mailbox_.closed(); }
  // Whoever acquires it holds the turn until it releases or schedules it.
  bool TryAcquire() { return mailbox_.TryAcquire(); }
  // As ActorRef::Stop.
  void RequestStop(absl::Time deadline, StopMode mode = StopMode::kDrain);
  // The same by its parent, or by its executor: nobody restarts it.
  void RequestEnd(absl::Time deadline);

  ActorId id() const { return id_; }
  // "actor 12 (pelton::Channel)".
  std::string Describe() const;
  // "" if it was given none.
  std::string given_name() const;
  Executor& executor() const { return executor_; }
  const ActorType& type() const { return type_; }
  OnFailure on_failure() const { return on_failure_; }
  // Whether its parent restarts it when it fails.
  bool restarts() const {
    return on_failure_ == OnFailure::kRestart || on_failure_ == OnFailure::kAlwaysRestart;
  }
  // Grows when an incarnation ends: what was asked for by an older one is dropped.
  uint32_t incarnation() const { return incarnation_.load(std::memory_order_relaxed); }
  // What a listing shows (executor_base.h). An odd number of turns: it is in one.
  int32_t mailbox_used() const { return mailbox_.used(); }
  int32_t mailbox_capacity() const { return mailbox_.capacity(); }
  uint32_t turns() const { return turns_.load(std::memory_order_relaxed); }
  absl::Duration longest_turn() const {
    return absl::Microseconds(longest_turn_us_.load(std::memory_order_relaxed));
  }
  bool ends_with_parent() const { return ends_with_parent_; }
  // Without a parent on its executor, which would stop it in time.
  bool is_local_root() const {
    return !parent_ || !ends_with_parent_ || &parent_->executor() != &executor_;
  }

  // Before the first turn -----------------------------------------------------------------------

  void Start(std::unique_ptr<Actor> actor);
  // Makes it restartable.
  void SetFactory(ActorFactory factory);
  bool restartable() const { return restartable_; }

  // The holder of the turn ----------------------------------------------------------------------

  // Handles up to `quota` messages, then polls once if the actor polls.
  TurnOutcome Turn(int quota);
  // False if messages came: the caller still holds the turn.
  bool TryRelease() { return mailbox_.TryRelease(); }
  bool HasNews() const { return mailbox_.HasNews(); }
  // Ends the actor without waiting for anything.
  void Die(const absl::Status& why);

  // The name it was given, else Describe().
  std::string Name() const;
  Actor* actor() const { return actor_.get(); }
  // Whether it has failed or is stopping.
  bool ending() const { return phase_ != Phase::kStarting && phase_ != Phase::kRunning; }
  // Whether a borrower may call the actor: one that has failed is only there to be ended.
  bool lendable() const { return HandlesUserMessages(); }
  void Fail(absl::Status why);
  void BeginStop(absl::Time deadline, StopMode mode = StopMode::kDrain);
  // For a child whose parent restarts it with a sibling: ends this incarnation, then reports.
  void Suspend();
  void Restart();
  void AddWatcher(std::unique_ptr<Watcher> watcher);
  // Keeps a message that came while there is no incarnation for the next one.
  void KeepForRestart(MessageNode* node) { kin().kept.Append(node); }
  Family* family() const { return kin_ == nullptr ? nullptr : kin_->family.get(); }
  void set_family(std::unique_ptr<Family> family) { kin().family = std::move(family); }
  const SupervisionSpec& supervision() { return kin().supervision; }
  void OnChildDown(ActorCell& child);

  // For the executor's own use: its links and marks.
  ActorCell* next_scheduled = nullptr;
  ActorCell* next_alive = nullptr;
  ActorCell* previous_alive = nullptr;
  bool on_poll_list = false;

 private:
  enum class Phase : uint8_t {
    kStarting,
    kRunning,
    kStopping,   // an orderly stop: waits for the children
    kDraining,   // refuses new messages, handles the old ones
    kFailing,    // waits for the children
    kSuspended,  // without incarnation: waits for its parent's verdict
    kDead,
  };
  // What few actors have.
  struct Kin {
    std::string name;
    std::vector<std::unique_ptr<Watcher>> watchers;
    std::deque<std::unique_ptr<RoomWaiter>> room_waiters;
    size_t next_pruning = 16;  // number of watchers at which those that nobody wants are dropped
    std::unique_ptr<Family> family;
    SupervisionSpec supervision;
    ActorFactory factory;
    MessageList kept;  // for the next incarnation
    absl::AnyInvocable<void(const absl::Status&) &&> on_end;
    absl::Status why;  // of the last failure; of one that has ended: read by any
    absl::Time stop_deadline;
    Timer stop_timer;
  };

  ~ActorCell();
  Kin& kin();
  absl::Status WhyNoRoom() const;
  bool HandlesUserMessages() const {
    return phase_ == Phase::kRunning || phase_ == Phase::kStopping || phase_ == Phase::kDraining;
  }
  struct Handled {
    int messages = 0;
    int system = 0;  // of these
    int room = 0;    // that the others held
  };
  // Handles up to `quota` messages.
  Handled HandleMessages(int quota);
  MessageNode* NextMessage();
  TurnOutcome RunTurn(int quota);
  void ServeRoomWaiters();
  void StartIncarnation();
  void EndIncarnation(const absl::Status& why);
  // Tells whoever waits for what this turn has dropped.
  void ExplainDropped(const absl::Status& why) const;
  void EnterFailing(absl::Status why);
  void ReportToParent(const absl::Status& why);
  bool family_empty() const { return family() == nullptr || family()->empty(); }
  void WaitForChildren(absl::Time deadline, Phase phase);
  void SetStopTimer(absl::Time deadline);
  void OnChildrenGone();
  void OnStopDeadline();
  void DieIfDrained(PollResult poll);
  void TellWatchers(const absl::Status& why);
  void PollOnce(TurnOutcome& outcome);

  bool dropping_ = false;           // the holder's: what waits is dropped
  std::atomic<uint32_t> turns_{0};  // twice their number; written by the holder, read by any
  // Senders and the holder.
  Mailbox mailbox_;
  Executor& executor_;
  std::atomic<uint32_t> refs_{1};
  // The holder only.
  std::atomic<uint32_t> incarnation_{0};  // read by any
  MessageList system_;
  MessageList user_;
  std::unique_ptr<Actor> actor_;
  std::unique_ptr<Kin> kin_;
  const ActorType& type_;
  const ActorId id_;
  const RefPtr<ActorCell> parent_;
  Phase phase_ = Phase::kStarting;
  const OnFailure on_failure_;
  const bool ends_with_parent_;
  const bool has_name_;  // in its kin, which is there from the start then
  bool restartable_ = false;
  bool stopping_ = false;  // it was told to end: no failure gives it another incarnation
  std::atomic<uint32_t> longest_turn_us_{0};  // written by the holder, read by any
};

// A message for the runtime itself: runs `F(ActorCell&)` in a turn; if the actor is dead by then,
// `F::OnDead()`, where there is one.
template <typename F>
struct SystemCall {
  static absl::Status Handle(ActorCell& cell, MessageNode* node) {
    F call = TakePayload<F>(node);
    call(cell);
    return absl::OkStatus();
  }
  static void Discard(MessageNode* node) {
    F call = TakePayload<F>(node);
    if constexpr (requires { call.OnDead(); }) call.OnDead();
  }
  static constexpr MessageKind kKind{&Handle, &Discard, MessageClass::kSystem};
};

template <typename F>
MessageNode* NewSystemCall(F call) {
  return NewMessage<F>(&SystemCall<F>::kKind, std::move(call));
}

}  // namespace internal
}  // namespace pelton

namespace pelton::internal {

// A first-in-first-out queue of scheduled actors, linked through the actors themselves.
// Threads: one at a time. Owns: the turns of the actors in it.
class CellQueue {
 public:
  bool empty() const { return head_ == nullptr; }
  void Push(ActorCell& cell) {
    cell.next_scheduled = nullptr;
    (head_ == nullptr ? head_ : tail_->next_scheduled) = &cell;
    tail_ = &cell;
  }
  ActorCell* Pop() {
    ActorCell* cell = head_;
    if (cell != nullptr) head_ = cell->next_scheduled;
    return cell;
  }

 private:
  ActorCell* head_ = nullptr;
  ActorCell* tail_ = nullptr;  // undefined while empty
};

}  // namespace pelton::internal

#endif  // PELTON_CORE_ACTOR_ACTOR_CELL_H_
