// The explorer of interleavings itself: what it must find, and what it must not.
#include <atomic>
#include <memory>
#include <string>

#include "core/actor/tests/expect_outcome.h"
#include "core/actor/tests/interleavings.h"
#include "gtest/gtest.h"

namespace pelton::interleavings {
namespace {

// Two threads that each raise a flag and look at the other's.
struct Flags {
  std::memory_order store = std::memory_order_relaxed;
  std::memory_order load = std::memory_order_relaxed;
  bool are_fenced = false;
};
Outcome BothLookAtTheOther(Flags how) {
  return Explore([how] {
    struct State {
      Atomic<int> flag[2] = {0, 0};
      int seen[2] = {-1, -1};
    };
    auto state = std::make_shared<State>();
    Program program;
    for (int self = 0; self < 2; ++self) {
      program.threads.push_back([state, self, how] {
        state->flag[self].store(1, how.store);
        if (how.are_fenced) Fence();
        state->seen[self] = state->flag[1 - self].load(how.load);
      });
    }
    program.at_end = [state] {
      if (state->seen[0] == 0 && state->seen[1] == 0) Fail("neither saw the other");
    };
    return program;
  });
}

TEST(InterleavingsTest, AMissingFenceIsFound) {
  ExpectWrong(BothLookAtTheOther({}), "neither saw the other");
  ExpectRight(BothLookAtTheOther({.are_fenced = true}), 1);
}

// An operation of order seq_cst is no fence for those beside it.
TEST(InterleavingsTest, AStoreAndALookAreOrderedIfBothAreSequentiallyConsistent) {
  constexpr auto kSequential = std::memory_order_seq_cst;
  ExpectRight(BothLookAtTheOther({kSequential, kSequential}), 1);
  ExpectWrong(BothLookAtTheOther({std::memory_order_release, kSequential}), "neither saw");
  ExpectWrong(BothLookAtTheOther({kSequential, std::memory_order_acquire}), "neither saw");
}

TEST(InterleavingsTest, AFenceAloneHandsNoOtherMemoryOver) {
  ExpectWrong(Explore([] {
                auto value = std::make_shared<Plain<int>>();
                Program program;
                program.threads.push_back([=] {
                  value->Set(7);
                  Fence();
                });
                program.threads.push_back([=] {
                  Fence();
                  value->Get();
                });
                return program;
              }),
              "data race");
}

// One reads and says so; the other writes over it then.
Outcome WritesOverWhatWasRead(std::memory_order store, std::memory_order load) {
  return Explore([=] {
    auto is_read = std::make_shared<Atomic<int>>(0);
    auto value = std::make_shared<Plain<int>>();
    Program program;
    program.threads.push_back([=] {
      value->Get();
      is_read->store(1, store);
    });
    program.threads.push_back([=] {
      for (int i = 0; i < 2; ++i) {
        if (is_read->load(load) != 0) value->Set(7);
      }
    });
    return program;
  });
}

TEST(InterleavingsTest, AWriteOverWhatIsStillBeingReadIsARace) {
  ExpectRight(WritesOverWhatWasRead(std::memory_order_release, std::memory_order_acquire), 1);
  ExpectWrong(WritesOverWhatWasRead(std::memory_order_relaxed, std::memory_order_acquire),
              "still be reading");
  ExpectWrong(WritesOverWhatWasRead(std::memory_order_release, std::memory_order_relaxed),
              "still be reading");
}

// One looks for the other's flag until it is there, without sleeping.
Outcome OneLooksForTheOthersFlag(bool is_raised) {
  return Explore([=] {
    auto flag = std::make_shared<Atomic<int>>(0);
    auto value = std::make_shared<Plain<int>>();
    Program program;
    program.threads.push_back([=] {
      value->Set(7);
      if (is_raised) flag->store(1, std::memory_order_release);
    });
    program.threads.push_back([=] {
      while (flag->load(std::memory_order_acquire) == 0) AwaitWrite();
      if (value->Get() != 7) Fail("another value");
    });
    return program;
  });
}

TEST(InterleavingsTest, ALoopThatLooksEndsWhenItCanSeeWhatItLooksFor) {
  ExpectRight(OneLooksForTheOthersFlag(/*is_raised=*/true), 1);
  ExpectWrong(OneLooksForTheOthersFlag(/*is_raised=*/false), "nobody writes any more");
}

Outcome HandOver(std::memory_order store, std::memory_order load) {
  return Explore([=] {
    struct State {
      Plain<int> value{0};
      Atomic<int> is_there = 0;
    };
    auto state = std::make_shared<State>();
    Program program;
    program.threads.push_back([=] {
      state->value.Set(7);
      state->is_there.store(1, store);
    });
    program.threads.push_back([=] {
      for (int i = 0; i < 3; ++i) {
        if (state->is_there.load(load) == 0) continue;
        if (state->value.Get() != 7) Fail("another value");
      }
    });
    return program;
  });
}

TEST(InterleavingsTest, AHandOverWithoutReleaseOrAcquireIsARace) {
  ExpectRight(HandOver(std::memory_order_release, std::memory_order_acquire), 1);
  ExpectWrong(HandOver(std::memory_order_relaxed, std::memory_order_acquire), "data race");
  ExpectWrong(HandOver(std::memory_order_release, std::memory_order_relaxed), "data race");
}

// One writes two values and says so, and may be killed; the other one awaits its end.
Outcome OneMayBeKilled(bool looks_at_its_word) {
  return Explore([=] {
    struct State {
      Plain<int> first, second;
      Atomic<int> is_whole = 0;
    };
    auto state = std::make_shared<State>();
    Program program;
    program.mortal = 0;
    program.threads.push_back([=] {
      state->first.Set(1);
      Fence();  // a step: plain memory alone is none
      state->second.Set(1);
      state->is_whole.store(1, std::memory_order_relaxed);
    });
    program.threads.push_back([=] {
      const bool was_killed = AwaitEnd(0);
      const bool is_whole = state->is_whole.load(std::memory_order_relaxed) == 1;
      if (!was_killed && !is_whole) Fail("it ended, and did not do all");
      if (looks_at_its_word && !is_whole) return;
      if (state->first.Get() != 1 || state->second.Get() != 1) Fail("half a message");
    });
    return program;
  });
}

TEST(InterleavingsTest, AThreadIsKilledBetweenAnyTwoOfItsSteps) {
  ExpectRight(OneMayBeKilled(/*looks_at_its_word=*/true));
  ExpectWrong(OneMayBeKilled(/*looks_at_its_word=*/false), "half a message");
}

// That it has died is known before its end is, and says nothing of what it has stored.
Outcome OneAsksWhetherTheOtherHasDied(bool takes_that_for_news) {
  return Explore([=] {
    struct State {
      Atomic<int> word = 0;
      int stored = 0;
    };
    auto state = std::make_shared<State>();
    Program program;
    program.mortal = 0;
    program.threads.push_back([=] {
      state->word.store(1, std::memory_order_relaxed);
      state->stored = 1;
      Fence();
    });
    program.threads.push_back([=] {
      const bool has_died = HasDied(0);
      if (takes_that_for_news && has_died &&
          state->word.load(std::memory_order_relaxed) < state->stored) {
        Fail("it has not seen what the dead one stored");
      }
      const bool was_killed = AwaitEnd(0);
      if (HasDied(0) != was_killed) Fail("killed for one and not for the other");
      if (has_died && !was_killed) Fail("it lives again");
      if (state->word.load(std::memory_order_relaxed) < state->stored) Fail("its end hides it");
    });
    return program;
  });
}

TEST(InterleavingsTest, ACallThatNamesTheKilledFindsOutThatItHasDied) {
  ExpectRight(OneAsksWhetherTheOtherHasDied(/*takes_that_for_news=*/false));
  ExpectWrong(OneAsksWhetherTheOtherHasDied(/*takes_that_for_news=*/true), "it has not seen");
}

// One wakes the other, and may be killed before it does.
TEST(InterleavingsTest, WhoeverSleepsUntilTheKilledWakesItSleepsForEver) {
  const auto explore = [](size_t mortal) {
    return Explore([mortal] {
      auto word = std::make_shared<Atomic<uint32_t>>(0);
      Program program;
      program.mortal = mortal;
      program.threads.push_back([word] {
        word->store(1);
        WakeSleepers(word->location(), 1);
      });
      program.threads.push_back([word] { Sleep(word->location(), 0); });
      return program;
    });
  };
  ExpectRight(explore(Program::kNobody), 1);
  ExpectRight(explore(/*mortal=*/1));
  ExpectWrong(explore(/*mortal=*/0), "a wake-up was lost");
}

}  // namespace
}  // namespace pelton::interleavings
