// The lock-free parts of the runtime in every order of small programs, and the mistakes that this
// finds.
#include "core/actor/tests/interleavings.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/actor/mailbox.h"
#include "core/actor/promise.h"
#include "core/actor/tests/expect_outcome.h"
#include "core/actor/thread_loop.h"
#include "core/actor/waker.h"
#include "core/base/check.h"
#include "gtest/gtest.h"

namespace pelton::internal {
namespace {

using interleavings::Explore;
using interleavings::Fail;
using interleavings::ModelSync;
using interleavings::Outcome;
using interleavings::Plain;
using interleavings::Program;

constexpr absl::Duration kForEver = absl::InfiniteDuration();

// The mailbox ------------------------------------------------------------------------------------

// A message with memory that its sender has written.
struct Letter {
  MessageNode node{nullptr, &kKind};
  Plain<int> value{0};
  static constexpr MessageKind kKind{nullptr, nullptr, MessageClass::kUser};
};

// An actor's mailbox, and the letters to it.
template <typename Sync>
struct Post {
  explicit Post(int letter_count) : letters(letter_count) {}
  // Hands letter `i` over; true: the sender is to run the actor.
  bool Send(size_t i, int value) {
    letters[i].value.Set(value);
    const PushResult result = mailbox.Push(&letters[i].node);
    return result == PushResult::kWake;
  }
  // A turn: reads what came. The holder.
  void Read() {
    MessageList system;
    MessageList user;
    if (!mailbox.Drain(system, user)) return;
    while (MessageNode* node = user.Pop()) {
      for (Letter& letter : letters) {
        if (&letter.node == node) sum += letter.value.Get();
      }
      read.Set(read.Get() + 1);  // a race, if two threads ever hold the turn
    }
  }
  // Turns until there is no news, as an executor does.
  void RunUntilIdle() {
    do {
      Read();
    } while (!mailbox.TryRelease());
  }
  BasicMailbox<Sync> mailbox{8};
  std::deque<Letter> letters;
  Plain<int> read{0};
  int sum = 0;
};

// Senders that each run the actor when its turn falls to them.
template <typename Sync>
Outcome SendersRunTheActor(int senders) {
  return Explore([=] {
    auto post = std::make_shared<Post<Sync>>(senders + 1);
    Program program;
    for (int i = 0; i < senders; ++i) {
      program.threads.push_back([=] {
        if (post->Send(i, 1 << i)) post->RunUntilIdle();
      });
    }
    // Its maker holds the first turn.
    program.threads.push_back([=] { post->RunUntilIdle(); });
    program.at_end = [=] {
      if (post->read.Get() != senders) Fail("a message was lost");
      if (post->sum != (1 << senders) - 1) Fail("a message was read twice");
    };
    return program;
  });
}

TEST(MailboxModelTest, NoMessageIsLostAndOneThreadHoldsTheTurn) {
  ExpectRight(SendersRunTheActor<ModelSync>(2));
}

// The same orders, one weaker than given.
template <std::memory_order kFrom, std::memory_order kTo>
struct WeakerSync : ModelSync {
  template <typename T>
  class Atomic : public interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    static std::memory_order Of(std::memory_order order) { return order == kFrom ? kTo : order; }

   public:
    Atomic(T value) : Base(value) {}  // NOLINT: as std::atomic
    T load(std::memory_order order = std::memory_order_seq_cst) const {
      return Base::load(Of(order));
    }
    T exchange(T value, std::memory_order order = std::memory_order_seq_cst) {
      return Base::exchange(value, Of(order));
    }
    bool compare_exchange_strong(T& expected, T desired,
                                 std::memory_order order = std::memory_order_seq_cst) {
      return Base::compare_exchange_strong(expected, desired, Of(order));
    }
    bool compare_exchange_weak(T& expected, T desired,
                               std::memory_order order = std::memory_order_seq_cst,
                               std::memory_order = std::memory_order_relaxed) {
      return Base::compare_exchange_strong(expected, desired, Of(order));
    }
    T fetch_or(T bits, std::memory_order order) { return Base::fetch_or(bits, Of(order)); }
    T fetch_add(T by, std::memory_order order) { return Base::fetch_add(by, Of(order)); }
  };
};

TEST(MailboxModelTest, APushWithoutReleaseIsFound) {
  using Weaker = WeakerSync<std::memory_order_acq_rel, std::memory_order_acquire>;
  ExpectWrong(SendersRunTheActor<Weaker>(2), "data race");
}

TEST(MailboxModelTest, ADrainWithoutAcquireIsFound) {
  using Weaker = WeakerSync<std::memory_order_acquire, std::memory_order_relaxed>;
  ExpectWrong(SendersRunTheActor<Weaker>(2), "data race");
}

// A borrower that takes the turn when nobody has it, and gives it back while messages come.
Outcome ABorrowerComesBetween(bool gives_way) {
  return Explore([=] {
    auto post = std::make_shared<Post<ModelSync>>(1);
    Program program;
    program.threads.push_back([=] {
      if (post->Send(0, 1)) post->RunUntilIdle();
    });
    program.threads.push_back([=] { post->RunUntilIdle(); });
    program.threads.push_back([=] {
      if (!post->mailbox.TryAcquire()) return;
      // What comes meanwhile is left to the executor, unless the borrower forgets to look.
      if (!post->mailbox.TryRelease() && gives_way) post->RunUntilIdle();
    });
    program.at_end = [=] {
      if (post->read.Get() != 1) Fail("a message was lost");
    };
    return program;
  });
}

TEST(MailboxModelTest, WhatComesWhileATurnIsLentIsHandledAfterIt) {
  ExpectRight(ABorrowerComesBetween(/*gives_way=*/true));
  ExpectWrong(ABorrowerComesBetween(/*gives_way=*/false), "a message was lost");
}

// Room -------------------------------------------------------------------------------------------

// One returns the last unit of room, which the holder waits for on behalf of somebody.
Outcome RoomIsWaitedFor(bool says_so_first) {
  return Explore([=] {
    struct State {
      BasicMailbox<ModelSync> mailbox{1};
      bool looks_again = false;
      int served = 0;
    };
    auto state = std::make_shared<State>();
    PELTON_CHECK(state->mailbox.TryReserve(1));
    Program program;
    program.threads.push_back([=] { state->looks_again = state->mailbox.ReturnRoom(1); });
    program.threads.push_back([=] {
      if (says_so_first) state->mailbox.SetRoomWanted(true);
      if (state->mailbox.TryReserve(1)) {
        ++state->served;
      } else {
        state->mailbox.SetRoomWanted(true);
      }
    });
    program.at_end = [=] {
      if (state->looks_again && state->served == 0 && state->mailbox.TryReserve(1)) {
        ++state->served;
      }
      if (state->served != 1) Fail("somebody waits for room that is there");
    };
    return program;
  });
}

TEST(RoomModelTest, WhoWaitsForRoomGetsIt) { ExpectRight(RoomIsWaitedFor(true)); }
TEST(RoomModelTest, ALookBeforeTheWordThatSomebodyWaitsIsFound) {
  ExpectWrong(RoomIsWaitedFor(false), "somebody waits for room");
}

// Stopping: what was reserved before the refusal is used or comes back, and whoever ends the actor
// sees all that was done with it.
enum class Refusal {
  kRight,
  kAfterTheLook,  // it looks whether room is out, and refuses in a second step
  kNone,          // it looks, and refuses nothing
};
template <typename Sync>
Outcome AnActorEndsWhenNoRoomIsOut(Refusal refusal, bool is_returned) {
  return Explore([=] {
    struct State {
      BasicMailbox<Sync> mailbox{2};
      Plain<int> memory;  // of the actor, which whoever has room may use
      bool holds = false;
      bool has_ended = false;
    };
    auto state = std::make_shared<State>();
    Program program;
    program.threads.push_back([=] {
      state->holds = state->mailbox.TryReserve(1);
      if (!state->holds) return;
      state->memory.Set(1);
      if (!is_returned) return;
      state->mailbox.ReturnRoom(1);
      state->holds = false;
    });
    program.threads.push_back([=] {
      bool is_empty = state->mailbox.used() == 0;
      if (refusal != Refusal::kNone) state->mailbox.RefuseReservations();
      if (refusal == Refusal::kRight) is_empty = state->mailbox.AllRoomReturned();
      if (!is_empty) return;
      state->memory.Set(2);
      state->has_ended = true;
    });
    program.at_end = [=] {
      if (state->holds && state->has_ended) Fail("the actor ended while room was reserved");
      if (state->mailbox.TryReserve(1)) Fail("room after the refusal");
    };
    return program;
  });
}

TEST(RoomModelTest, NobodyReservesAfterTheRefusalAndWhatIsOutIsSeen) {
  ExpectRight(AnActorEndsWhenNoRoomIsOut<ModelSync>(Refusal::kRight, /*is_returned=*/false));
  ExpectRight(AnActorEndsWhenNoRoomIsOut<ModelSync>(Refusal::kRight, /*is_returned=*/true));
}
TEST(RoomModelTest, ALookBeforeTheRefusalIsFound) {
  // What the two do with the memory of the actor is a race, whoever comes first.
  EXPECT_NE(AnActorEndsWhenNoRoomIsOut<ModelSync>(Refusal::kAfterTheLook, false).error, "");
}
TEST(RoomModelTest, AMissingRefusalIsFound) {
  EXPECT_NE(AnActorEndsWhenNoRoomIsOut<ModelSync>(Refusal::kNone, true).error, "");
}
TEST(RoomModelTest, AReturnWithoutReleaseAndADrainWithoutAcquireAreFound) {
  using WeakReturn = WeakerSync<std::memory_order_release, std::memory_order_relaxed>;
  using WeakDrain = WeakerSync<std::memory_order_acquire, std::memory_order_relaxed>;
  ExpectWrong(AnActorEndsWhenNoRoomIsOut<WeakReturn>(Refusal::kRight, true), "data race");
  ExpectWrong(AnActorEndsWhenNoRoomIsOut<WeakDrain>(Refusal::kRight, true), "data race");
}

// Parking ----------------------------------------------------------------------------------------

// The thread of a ThreadExecutor and its actor: what ThreadExecutor::Schedule, ThreadLoop and
// ThreadExecutor::Run do, without timers and polls.
struct Cell {
  Cell* next_scheduled = nullptr;
};
enum class Mistake {
  kNone,
  kKickBeforePush,   // the wake-up before what it is for
  kNoKick,           // a sender who finds the list empty wakes nobody
  kParkWithoutLook,  // the thread parks although a turn ended with news
};
template <typename Sync>
struct Thread {
  explicit Thread(int senders) : post(senders) {}

  void Send(size_t i, Mistake mistake) {
    if (!post.Send(i, 1 << i)) return;
    if (mistake == Mistake::kKickBeforePush) waker.Kick();
    const bool must_kick = inbound.Push(cell);
    if (must_kick && mistake != Mistake::kKickBeforePush && mistake != Mistake::kNoKick) {
      waker.Kick();
    }
  }
  // Until all letters are read.
  void Run(int letters, Mistake mistake) {
    while (post.read.Get() < letters) {
      bool is_queued = inbound.TakeAll() != nullptr;
      if (is_queued) {
        post.Read();
        is_queued = !post.mailbox.TryRelease();
        // The turn is the thread's own again: it goes on without looking at the list.
        while (is_queued && mistake != Mistake::kParkWithoutLook) {
          post.Read();
          is_queued = !post.mailbox.TryRelease();
        }
        if (mistake != Mistake::kParkWithoutLook) continue;
      }
      if (post.read.Get() == letters) return;
      waker.Park(kForEver);
    }
  }

  Post<Sync> post;
  Inbound<Cell, Sync> inbound;
  BasicWaker<Sync> waker;
  Cell cell;
};

Outcome AThreadParksAndIsWoken(int senders, Mistake mistake) {
  const auto make = [=] {
    auto thread = std::make_shared<Thread<ModelSync>>(senders);
    PELTON_CHECK(thread->post.mailbox.TryRelease());  // its first turn is over
    Program program;
    for (int i = 0; i < senders; ++i) {
      program.threads.push_back([=] { thread->Send(i, mistake); });
    }
    program.threads.push_back([=] { thread->Run(senders, mistake); });
    return program;
  };
  return senders == 1 ? Explore(make) : Explore(make, /*most_preemptions=*/3);
}

TEST(ParkingModelTest, NoWakeUpIsLost) {
  ExpectRight(AThreadParksAndIsWoken(1, Mistake::kNone));
  ExpectRight(AThreadParksAndIsWoken(2, Mistake::kNone));
}
TEST(ParkingModelTest, AWakeUpBeforeTheFlagIsFound) {
  ExpectWrong(AThreadParksAndIsWoken(1, Mistake::kKickBeforePush), "a wake-up was lost");
}
TEST(ParkingModelTest, AMissingWakeUpIsFound) {
  ExpectWrong(AThreadParksAndIsWoken(1, Mistake::kNoKick), "a wake-up was lost");
}
// The loss of ten seconds that the executor once had.
TEST(ParkingModelTest, AParkWithARunnableActorIsFound) {
  ExpectWrong(AThreadParksAndIsWoken(2, Mistake::kParkWithoutLook), "a wake-up was lost");
}

// Two that kick, and one that parks until it has seen both.
template <typename Waker>
Outcome Kicks() {
  return Explore([] {
    struct State {
      Waker waker;
      interleavings::Atomic<int> done = 0;
    };
    auto state = std::make_shared<State>();
    Program program;
    for (int i = 0; i < 2; ++i) {
      program.threads.push_back([=] {
        state->done.fetch_add(1, std::memory_order_relaxed);
        state->waker.Kick();
      });
    }
    program.threads.push_back([=] {
      while (state->done.load(std::memory_order_relaxed) < 2) state->waker.Park(kForEver);
    });
    return program;
  });
}

// Looks at the word, and sleeps in a second step.
class HastyWaker {
 public:
  void Kick() {
    if (word_.exchange(1) == 2) ModelSync::Wake(&word_, 1, FutexScope::kProcess);
  }
  void Park(absl::Duration) {
    if (word_.load() == 0) {
      word_.store(2);  // over a kick that came in between
      ModelSync::Wait(&word_, 2, kForEver, FutexScope::kProcess);
    }
    word_.exchange(0);
  }

 private:
  interleavings::Atomic<uint32_t> word_ = 0;
};

TEST(WakerModelTest, NoKickIsLost) { ExpectRight(Kicks<BasicWaker<ModelSync>>()); }
TEST(WakerModelTest, ALookThatIsNoCompareAndSwapIsFound) {
  ExpectWrong(Kicks<HastyWaker>(), "a wake-up was lost");
}

// Futures ----------------------------------------------------------------------------------------

enum class Keeping {
  kRight,
  kBeforeTheResult,  // it says that the result is there, and writes it then
  kWithoutClaim,     // it looks whether there is a result, and claims nothing
};
template <typename Sync>
struct Owed {
  void Keep(Keeping keeping) {
    if (keeping == Keeping::kWithoutClaim ? core.ready() : !core.Claim()) return;
    if (keeping == Keeping::kBeforeTheResult) core.Finish();
    if (result.Get() != 0) Fail("completed twice");
    result.Set(1);
    if (keeping != Keeping::kBeforeTheResult) core.Finish();
  }
  void Await() {
    while (!core.Park(kForEver)) {
    }
    if (result.Get() != 1) Fail("ready without a result");
  }
  BasicFutureCore<Sync> core;
  Plain<int> result{0};
  Plain<int> continued{0};
};

// A promise that is kept, a thread that sleeps for it and a continuation.
template <typename Sync>
Outcome APromiseIsKept(Keeping keeping = Keeping::kRight) {
  return Explore([keeping] {
    auto state = std::make_shared<Owed<Sync>>();
    Program program;
    program.threads.push_back([=] { state->Keep(keeping); });
    program.threads.push_back([=] { state->Await(); });
    program.threads.push_back([=] {
      state->core.SetContinuation(
          [](void* argument) {
            auto* const self = static_cast<Owed<Sync>*>(argument);
            if (self->result.Get() != 1) Fail("continued without a result");
            self->continued.Set(self->continued.Get() + 1);
          },
          state.get());
    });
    program.at_end = [=] {
      if (state->continued.Get() != 1) Fail("not continued once");
    };
    return program;
  });
}

TEST(FutureModelTest, WhoSleepsIsWokenAndTheContinuationRunsOnce) {
  ExpectRight(APromiseIsKept<ModelSync>());
}
TEST(FutureModelTest, AWordBeforeTheResultIsFound) {
  ExpectWrong(APromiseIsKept<ModelSync>(Keeping::kBeforeTheResult), "data race");
}
TEST(FutureModelTest, ACompletionThatWakesNobodyIsFound) {
  struct Sleepless : ModelSync {
    static void Wake(const Atomic<uint32_t>*, int, FutexScope) {}
  };
  ExpectWrong(APromiseIsKept<Sleepless>(), "a wake-up was lost");
}
TEST(FutureModelTest, ACompletionOrALookWithWeakerOrdersIsFound) {
  using NoRelease = WeakerSync<std::memory_order_acq_rel, std::memory_order_acquire>;
  using NoAcquire = WeakerSync<std::memory_order_acq_rel, std::memory_order_release>;
  using NoLook = WeakerSync<std::memory_order_acquire, std::memory_order_relaxed>;
  ExpectWrong(APromiseIsKept<NoRelease>(), "data race");
  ExpectWrong(APromiseIsKept<NoAcquire>(), "data race");
  ExpectWrong(APromiseIsKept<NoLook>(), "data race");
}

// Two that both have a result, and one that sleeps for it (ONCE-1).
Outcome TwoKeepAPromise(Keeping keeping) {
  return Explore([keeping] {
    auto state = std::make_shared<Owed<ModelSync>>();
    Program program;
    for (int i = 0; i < 2; ++i) program.threads.push_back([=] { state->Keep(keeping); });
    program.threads.push_back([=] { state->Await(); });
    return program;
  });
}

TEST(FutureModelTest, OneOfTwoCompletesIt) { ExpectRight(TwoKeepAPromise(Keeping::kRight)); }
TEST(FutureModelTest, ALookInPlaceOfAClaimIsFound) {
  EXPECT_NE(TwoKeepAPromise(Keeping::kWithoutClaim).error, "");
}

}  // namespace
}  // namespace pelton::internal
