// The doorbell and the abort in every order of small programs, and the mistakes that this finds.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/transport/shm/abort_words.h"
#include "comm/transport/shm/doorbell.h"
#include "core/actor/tests/expect_outcome.h"
#include "core/actor/tests/interleavings.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using interleavings::Explore;
using interleavings::Fail;
using interleavings::ModelSync;
using interleavings::Outcome;
using interleavings::Plain;
using interleavings::Program;

constexpr auto kForEver = [] { return absl::InfiniteDuration(); };
constexpr char kLost[] = "a wake-up was lost";

enum class Mistake {
  kNone,
  kRingsFirst,        // before what it rings for
  kDoesNotRing,       // because somebody else may
  kShowsWithRelease,  // so that the look at `parked` may pass the store
  kLooksFirst,        // and says after that that it parks
  kLooksWithAcquire,  // so that the look may pass the word that it parks
  kAbortsTwice,       // whoever aborts writes a reason, also where there is one
  kRingsTooEarly,     // an abort rings before its reason can be read
  kReadsTooEarly,     // the reason, when somebody has begun to abort
};

// The ranks of a communicator, and what they wait for.
template <typename Sync>
struct Ranks {
  // What a peer shows `rank`, and rings for.
  void Show(int rank, Mistake mistake) {
    if (mistake == Mistake::kRingsFirst) bell[rank].Ring(asleep);
    payload[rank].Set(7);
    change[rank].store(1, mistake == Mistake::kShowsWithRelease ? std::memory_order_release
                                                                : std::memory_order_seq_cst);
    if (mistake == Mistake::kRingsFirst || mistake == Mistake::kDoesNotRing) return;
    bell[rank].Ring(asleep);
  }
  bool Sees(int rank, Mistake mistake) const {
    return change[rank].load(mistake == Mistake::kLooksWithAcquire
                                 ? std::memory_order_acquire
                                 : std::memory_order_seq_cst) != 0;
  }
  // As Communicator::Park does, with `is_done` for Progress, until that is so.
  void ParkUntil(int rank, Mistake mistake, const std::function<bool()>& is_done) {
    while (true) {
      const bool seen = is_done();
      if (seen) return;
      const auto look = [&] { return mistake == Mistake::kLooksFirst ? seen : is_done(); };
      bell[rank].Park(asleep, wake, look, kForEver);
    }
  }
  void AwaitChange(int rank, Mistake mistake) {
    ParkUntil(rank, mistake, [&] { return Sees(rank, mistake); });
    if (payload[rank].Get() != 7) Fail("another payload");
  }
  // As AbortSwitch::Throw does.
  void Throw(int who, Mistake mistake) {
    const bool is_first = abort.Begin() || mistake == Mistake::kAbortsTwice;
    if (mistake == Mistake::kRingsTooEarly) RingAll();
    if (is_first) {
      reason.Set(who);
      abort.Finish();
    }
    if (mistake != Mistake::kRingsTooEarly) RingAll();
  }
  void RingAll() {
    for (auto& one : bell) one.RingAlways();
  }
  void ReadReason(Mistake mistake) {
    const bool is_there = mistake == Mistake::kReadsTooEarly ? abort.is_thrown() : abort.is_ready();
    if (!is_there) return;
    const int seen = reason.Get();
    if (seen == 0) Fail("no reason");
    if (known != 0 && seen != known) Fail("another reason than before");
    known = seen;
  }

  BasicDoorbell<Sync> bell[2];
  typename Sync::template Atomic<uint32_t> asleep{0};
  typename Sync::template Atomic<bool> wake{false};
  typename Sync::template Atomic<int> change[2] = {0, 0};
  Plain<int> payload[2];
  BasicAbortState<Sync> abort;
  Plain<int> reason;  // who has aborted
  int known = 0;      // to the rank that sleeps
};

// One rank sleeps until a peer shows it something.
template <typename Sync = ModelSync>
Outcome OneIsRung(Mistake mistake = Mistake::kNone) {
  return Explore([mistake] {
    auto ranks = std::make_shared<Ranks<Sync>>();
    Program program;
    program.threads.push_back([=] { ranks->AwaitChange(0, mistake); });
    program.threads.push_back([=] { ranks->Show(0, mistake); });
    return program;
  });
}

// What a bell's words are weakened to.
template <std::memory_order kOrder>
struct AllOf : ModelSync {
  template <typename T>
  class Atomic : public interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;

   public:
    Atomic(T value) : Base(value) {}  // NOLINT: as std::atomic
    T load(std::memory_order = kOrder) const { return Base::load(kOrder); }
    void store(T value, std::memory_order = kOrder) { Base::store(value, kOrder); }
    T fetch_add(T by) { return Base::fetch_add(by, kOrder); }
    T fetch_sub(T by) { return Base::fetch_sub(by, kOrder); }
    T exchange(T value) { return Base::exchange(value, kOrder); }
    bool compare_exchange_strong(T& expected, T desired) {
      return Base::compare_exchange_strong(expected, desired, kOrder);
    }
  };
};
// Sleeps on the number of rings that it finds when it falls asleep, and not on the one before it
// looked.
struct ReadsTheBellLate : ModelSync {
  static void Wait(const Atomic<uint32_t>* word, uint32_t, absl::Duration at_most,
                   FutexScope scope) {
    ModelSync::Wait(word, word->load(), at_most, scope);
  }
};
struct WakesNobody : ModelSync {
  static void Wake(const Atomic<uint32_t>*, int, FutexScope) {}
};

TEST(DoorbellModelTest, WhoSleepsIsWokenAndSeesWhatWasShown) { ExpectRight(OneIsRung()); }
TEST(DoorbellModelTest, ARingBeforeWhatItTellsOfIsFound) {
  ExpectWrong(OneIsRung(Mistake::kRingsFirst), kLost);
}
TEST(DoorbellModelTest, AMissingRingIsFound) {
  ExpectWrong(OneIsRung(Mistake::kDoesNotRing), kLost);
  ExpectWrong(OneIsRung<WakesNobody>(), kLost);
}
TEST(DoorbellModelTest, AStoreThatIsOnlyAReleaseIsFound) {
  ExpectWrong(OneIsRung(Mistake::kShowsWithRelease), kLost);
}
TEST(DoorbellModelTest, ALookBeforeTheWordThatItParksIsFound) {
  ExpectWrong(OneIsRung(Mistake::kLooksFirst), kLost);
}
TEST(DoorbellModelTest, ALookThatIsOnlyAnAcquireIsFound) {
  ExpectWrong(OneIsRung(Mistake::kLooksWithAcquire), kLost);
}
TEST(DoorbellModelTest, AParkThatReadsTheBellAfterItsLookIsFound) {
  ExpectWrong(OneIsRung<ReadsTheBellLate>(), kLost);
}
TEST(DoorbellModelTest, WordsThatAreOnlyAcquireAndReleaseAreFound) {
  ExpectWrong(OneIsRung<AllOf<std::memory_order_acq_rel>>(), kLost);
}

// Programs of three threads have more orders than there is time for: a few changes of thread show
// mistakes.
constexpr int kPreemptions = 3;

// Two peers show one rank something each, and it waits for both.
Outcome TwoRing(Mistake mistake) {
  return Explore(
      [mistake] {
        auto ranks = std::make_shared<Ranks<ModelSync>>();
        Program program;
        program.threads.push_back([=] {
          ranks->ParkUntil(0, mistake,
                           [&] { return ranks->Sees(0, mistake) && ranks->Sees(1, mistake); });
          if (ranks->payload[0].Get() != 7 || ranks->payload[1].Get() != 7) Fail("no payload");
        });
        program.threads.push_back([=] { ranks->Show(0, Mistake::kNone); });
        program.threads.push_back([=] {
          ranks->payload[1].Set(7);
          ranks->change[1].store(1);
          if (mistake != Mistake::kDoesNotRing) ranks->bell[0].Ring(ranks->asleep);
        });
        return program;
      },
      kPreemptions);
}

TEST(DoorbellModelTest, WhoWaitsForTwoIsWokenByTheLastOne) { ExpectRight(TwoRing(Mistake::kNone)); }
TEST(DoorbellModelTest, OneOfTwoThatDoesNotRingIsFound) {
  ExpectWrong(TwoRing(Mistake::kDoesNotRing), kLost);
  ExpectWrong(TwoRing(Mistake::kLooksFirst), kLost);
}

// Two ranks sleep, each for its own change, and share the word that counts those asleep.
Outcome TwoSleep(Mistake mistake) {
  return Explore(
      [mistake] {
        auto ranks = std::make_shared<Ranks<ModelSync>>();
        Program program;
        for (int rank = 0; rank < 2; ++rank) {
          program.threads.push_back([=] { ranks->AwaitChange(rank, mistake); });
        }
        program.threads.push_back([=] {
          ranks->Show(0, mistake);
          ranks->Show(1, Mistake::kNone);
        });
        return program;
      },
      kPreemptions);
}

TEST(DoorbellModelTest, EachOfTwoThatSleepIsWoken) { ExpectRight(TwoSleep(Mistake::kNone)); }
TEST(DoorbellModelTest, ARingToOneOfTwoBeforeItsChangeIsFound) {
  ExpectWrong(TwoSleep(Mistake::kRingsFirst), kLost);
}

// A thread of the sleeper's process leaves something for it, as an actor's mailbox does, with
// release only, and wakes it; a peer shows something at the same time.
template <typename Sync>
Outcome AThreadOfItsOwnWakesIt(bool wakes_first, bool with_peer) {
  return Explore(
      [=] {
        auto ranks = std::make_shared<Ranks<Sync>>();
        auto left = std::make_shared<typename Sync::template Atomic<int>>(0);
        Program program;
        program.threads.push_back([=] {
          // The executor looks at its mailboxes between two parks, and the park at the wires only.
          while (left->load(std::memory_order_acquire) == 0) {
            ranks->bell[0].Park(
                ranks->asleep, ranks->wake, [] { return false; }, kForEver);
          }
        });
        program.threads.push_back([=] {
          if (wakes_first) ranks->bell[0].Wake(ranks->wake);
          left->store(1, std::memory_order_release);
          if (!wakes_first) ranks->bell[0].Wake(ranks->wake);
        });
        if (with_peer) program.threads.push_back([=] { ranks->Show(0, Mistake::kNone); });
        return program;
      },
      kPreemptions);
}

// Forgets after its sleep that it was woken by a plain store, as Park once did: the look after that
// may pass the store, which then hides a wake-up for what the look has not seen.
struct ForgetsByAStore : ModelSync {
  inline static bool has_slept = false;
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    Atomic(T value) : interleavings::Atomic<T>(value) { has_slept = false; }  // NOLINT: as std's
    T exchange(T value) {
      if (!has_slept) return interleavings::Atomic<T>::exchange(value);
      has_slept = false;
      this->store(value);
      return value;
    }
  };
  static void Wait(const Atomic<uint32_t>* word, uint32_t expected, absl::Duration at_most,
                   FutexScope scope) {
    ModelSync::Wait(word, expected, at_most, scope);
    has_slept = true;
  }
};

TEST(DoorbellModelTest, AWakeUpOfItsOwnProcessIsNotLost) {
  ExpectRight(AThreadOfItsOwnWakesIt<ModelSync>(/*wakes_first=*/false, /*with_peer=*/false));
  ExpectRight(AThreadOfItsOwnWakesIt<ModelSync>(/*wakes_first=*/false, /*with_peer=*/true));
}
TEST(DoorbellModelTest, AWakeUpBeforeWhatItIsForIsFound) {
  ExpectWrong(AThreadOfItsOwnWakesIt<ModelSync>(/*wakes_first=*/true, false), kLost);
}
TEST(DoorbellModelTest, AWakeUpThatIsForgottenByAStoreIsFound) {
  ExpectWrong(AThreadOfItsOwnWakesIt<ForgetsByAStore>(/*wakes_first=*/false, false), kLost);
  ExpectWrong(AThreadOfItsOwnWakesIt<ForgetsByAStore>(/*wakes_first=*/false, true), kLost);
}

// Aborts ------------------------------------------------------------------------------------------

// A rank sleeps until the communicator ends, for which there are one or two reasons at a time.
template <typename Sync = ModelSync>
Outcome ACommunicatorIsAborted(int throwers, Mistake mistake = Mistake::kNone) {
  return Explore(
      [=] {
        auto ranks = std::make_shared<Ranks<Sync>>();
        Program program;
        program.threads.push_back([=] {
          ranks->ReadReason(mistake);
          ranks->ParkUntil(0, mistake, [&] { return ranks->abort.is_ready(); });
          ranks->ReadReason(mistake);
        });
        for (int who = 1; who <= throwers; ++who) {
          program.threads.push_back([=] { ranks->Throw(who, mistake); });
        }
        program.at_end = [=] { ranks->ReadReason(Mistake::kNone); };
        return program;
      },
      kPreemptions);
}

TEST(AbortModelTest, WhoSleepsIsToldOfTheFirstReasonOnly) {
  ExpectRight(ACommunicatorIsAborted(1));
  ExpectRight(ACommunicatorIsAborted(2));
}
TEST(AbortModelTest, ARingBeforeTheReasonIsFound) {
  ExpectWrong(ACommunicatorIsAborted(1, Mistake::kRingsTooEarly), kLost);
}
TEST(AbortModelTest, ASecondReasonIsFound) {
  EXPECT_NE(ACommunicatorIsAborted(2, Mistake::kAbortsTwice).error, "");
}
TEST(AbortModelTest, AReasonThatIsReadTooEarlyIsFound) {
  ExpectWrong(ACommunicatorIsAborted(1, Mistake::kReadsTooEarly), "data race");
}
TEST(AbortModelTest, AReasonWithoutReleaseAndAcquireIsFound) {
  ExpectWrong(ACommunicatorIsAborted<AllOf<std::memory_order_relaxed>>(1), "data race");
}

// A rank sleeps for a peer's change, which comes, or does not because another one aborts.
Outcome AnAbortComesBesideAChange(Mistake mistake) {
  return Explore(
      [mistake] {
        auto ranks = std::make_shared<Ranks<ModelSync>>();
        Program program;
        program.threads.push_back([=] {
          ranks->ParkUntil(0, mistake,
                           [&] { return ranks->abort.is_ready() || ranks->Sees(0, mistake); });
        });
        program.threads.push_back([=] {
          if (!ranks->abort.is_thrown()) ranks->Show(0, Mistake::kNone);
        });
        program.threads.push_back([=] { ranks->Throw(1, mistake); });
        return program;
      },
      kPreemptions);
}

TEST(AbortModelTest, WhoSleepsForAChangeIsToldOfAnAbortInItsPlace) {
  ExpectRight(AnAbortComesBesideAChange(Mistake::kNone));
}
TEST(AbortModelTest, AnAbortThatRingsTooEarlyBesideAChangeIsFound) {
  ExpectWrong(AnAbortComesBesideAChange(Mistake::kRingsTooEarly), kLost);
}

}  // namespace
}  // namespace pelton::shm
