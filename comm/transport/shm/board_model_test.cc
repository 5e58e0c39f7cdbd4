// Posts of collectives, their tasks, and the memory that they use, in every order of small
// programs, and the mistakes that this finds.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/transport/shm/abort_words.h"
#include "comm/transport/shm/board.h"
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
using interleavings::RelaxedSync;

enum class Mistake {
  kNone,
  kArrivesFirst,       // and writes its eager data then
  kPostsTooEarly,      // the next but one, without the arrival of all at the one before
  kClaimsInTwoSteps,   // a look, and the number that it found
  kFinishesFirst,      // says that a task is done, and does it then
  kDoesNotWaitForAll,  // takes its result when its own tasks are done
  kKeepsUnsaid,        // keeps its tasks, and arrives as if anybody might do them
};

// Two ranks that run collectives of `tasks` tasks per owner. The result of a task is the
// collective's sequence number.
template <typename Sync>
class Group {
 public:
  using Board = BasicBoard<Sync, Plain<uint64_t>>;
  static constexpr int kMostTasks = 2;

  explicit Group(Mistake mistake) : mistake_(mistake) {}

  // The eager recipe: every rank reads all posts and all eager buffers, and is through.
  void RunEagerly(int rank, uint64_t sequence) {
    if (mistake_ == Mistake::kArrivesFirst) board_[rank].Arrive(sequence, sequence);
    eager_[rank][sequence % Board::kDepth].Set(sequence);
    if (mistake_ != Mistake::kArrivesFirst) board_[rank].Arrive(sequence, sequence);
    if (mistake_ == Mistake::kPostsTooEarly && rank == 0 && sequence < 3) return;
    for (int peer = 0; peer < 2; ++peer) {
      AwaitArrival(peer, sequence);
      if (board_[peer].PostOf(sequence) != sequence) Fail("another post");
      if (eager_[peer][sequence % Board::kDepth].Get() != sequence) Fail("another buffer's data");
    }
  }

  // The direct recipe: any rank does any task, but for those that their owner keeps.
  void RunTasks(int rank, uint64_t sequence, uint64_t tasks, bool keeps) {
    const bool says_so = keeps && mistake_ != Mistake::kKeepsUnsaid;
    board_[rank].Arrive(sequence, sequence,
                        says_so ? Board::TasksOf::kOwner : Board::TasksOf::kAnyRank);
    for (int peer = 0; peer < 2; ++peer) {
      AwaitArrival(peer, sequence);
      if (board_[peer].PostOf(sequence) != sequence) Fail("another post");
    }
    for (int i = 0; i < 2; ++i) {
      const int owner = (rank + i) % 2;
      uint64_t kept = 0;
      const auto next = [&]() -> std::optional<uint64_t> {
        if (!keeps || owner != rank) return Claim(owner, sequence, tasks);
        return kept < tasks ? std::optional(kept++) : std::nullopt;
      };
      while (const std::optional<uint64_t> index = next()) {
        if (mistake_ == Mistake::kFinishesFirst) board_[owner].MarkFinished();
        Plain<uint64_t>& result = result_[owner][*index];
        if (result.Get() >= sequence) Fail("a task is done twice");
        result.Set(sequence);
        if (mistake_ != Mistake::kFinishesFirst) board_[owner].MarkFinished();
      }
    }
    for (int owner = 0; owner < 2; ++owner) {
      if (mistake_ == Mistake::kDoesNotWaitForAll && owner != rank) continue;
      while (!board_[owner].HasFinished(sequence, tasks)) interleavings::AwaitWrite();
    }
    // Nobody writes the results of the next one before this rank arrives there.
    for (int owner = 0; owner < 2; ++owner) {
      for (uint64_t task = 0; task < tasks; ++task) {
        if (result_[owner][task].Get() != sequence) Fail("another result");
      }
    }
  }

 private:
  void AwaitArrival(int peer, uint64_t sequence) {
    while (!board_[peer].HasArrived(sequence)) interleavings::AwaitWrite();
  }
  std::optional<uint64_t> Claim(int owner, uint64_t sequence, uint64_t tasks) {
    if (mistake_ != Mistake::kClaimsInTwoSteps) return board_[owner].Claim(sequence, tasks);
    const uint64_t next = next_.load();
    if (next >= tasks || owner != 0) return std::nullopt;
    next_.store(next + 1);
    return next;
  }

  const Mistake mistake_;
  Board board_[2];
  Plain<uint64_t> eager_[2][2];
  Plain<uint64_t> result_[2][kMostTasks];
  interleavings::Atomic<uint64_t> next_{0};  // of kClaimsInTwoSteps
};

struct Size {
  uint64_t collectives = 1;
  uint64_t tasks = 0;  // per owner; none: eager
  int keeping = 0;     // ranks below this one keep their tasks
  int most_preemptions = 3;
};
template <typename Sync = ModelSync>
Outcome TwoRanksRun(Size size, Mistake mistake = Mistake::kNone) {
  return Explore(
      [=] {
        auto group = std::make_shared<Group<Sync>>(mistake);
        Program program;
        for (int rank = 0; rank < 2; ++rank) {
          program.threads.push_back([=] {
            for (uint64_t sequence = 1; sequence <= size.collectives; ++sequence) {
              if (size.tasks == 0) {
                group->RunEagerly(rank, sequence);
              } else {
                group->RunTasks(rank, sequence, size.tasks, rank < size.keeping);
              }
            }
          });
        }
        return program;
      },
      size.most_preemptions);
}

// Three collectives: the third one's post takes the place of the first one's.
TEST(BoardModelTest, EveryPostIsReadWholeAndBeforeItsPlaceIsUsedAgain) {
  ExpectRight(TwoRanksRun({.collectives = 3}));
}
TEST(BoardModelTest, AnArrivalBeforeItsDataIsFound) {
  ExpectWrong(TwoRanksRun({.collectives = 1}, Mistake::kArrivesFirst), "data race");
}
TEST(BoardModelTest, APlaceThatIsUsedAgainTooEarlyIsFound) {
  EXPECT_NE(TwoRanksRun({.collectives = 3}, Mistake::kPostsTooEarly).error, "");
}
TEST(BoardModelTest, AnArrivalWithoutReleaseAndAcquireIsFound) {
  ExpectWrong(TwoRanksRun<RelaxedSync>({.collectives = 1}), "data race");
}

// Two ranks claim each other's tasks, of one collective and of the next, which counts anew.
TEST(BoardModelTest, EveryTaskIsDoneOnceAndAllSeeItsResult) {
  ExpectRight(TwoRanksRun({.collectives = 1, .tasks = 2}));
  ExpectRight(TwoRanksRun({.collectives = 2, .tasks = 1, .most_preemptions = 2}));
}
TEST(BoardModelTest, TasksThatTheirOwnerKeepsAreDoneByNobodyElse) {
  ExpectRight(TwoRanksRun({.tasks = 2, .keeping = 1}));
  ExpectRight(TwoRanksRun({.tasks = 2, .keeping = 2}));
  ExpectRight(TwoRanksRun({.collectives = 2, .tasks = 1, .keeping = 1, .most_preemptions = 2}));
}
TEST(BoardModelTest, TasksThatAreKeptWithoutAWordAreFound) {
  EXPECT_NE(TwoRanksRun({.tasks = 1, .keeping = 1}, Mistake::kKeepsUnsaid).error, "");
}
TEST(BoardModelTest, AClaimInTwoStepsIsFound) {
  EXPECT_NE(TwoRanksRun({.tasks = 2}, Mistake::kClaimsInTwoSteps).error, "");
}
TEST(BoardModelTest, ATaskThatIsFinishedBeforeItIsDoneIsFound) {
  EXPECT_NE(TwoRanksRun({.tasks = 1}, Mistake::kFinishesFirst).error, "");
}
TEST(BoardModelTest, ARankThatDoesNotWaitForTheOthersTasksIsFound) {
  EXPECT_NE(TwoRanksRun({.collectives = 2, .tasks = 1}, Mistake::kDoesNotWaitForAll).error, "");
}
TEST(BoardModelTest, TasksWithoutReleaseAndAcquireAreFound) {
  ExpectWrong(TwoRanksRun<RelaxedSync>({.tasks = 1}), "data race");
}
// Counts anew by a relaxed store, as Arrive once did: whoever learns of the end by it has not seen
// what the tasks wrote.
struct CountsAnewRelaxed : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      const bool is_release = order == std::memory_order_release;
      Base::store(value, is_release ? std::memory_order_relaxed : order);
    }
  };
};
TEST(BoardModelTest, ACountOfTheNextCollectiveWithoutReleaseIsFound) {
  ExpectWrong(TwoRanksRun<CountsAnewRelaxed>({.collectives = 2, .tasks = 1}), "data race");
}

// Memory that its owner takes back (OWN-1) --------------------------------------------------------

enum class Use { kRead, kWrite };
enum class Misuse {
  kNone,
  kLooksFirst,          // whether it may, and enters then
  kDoesNotEnter,        // but looks whether it may
  kLeavesFirst,         // and uses the memory then
  kOwnerLooksFirst,     // whether the other is in, and closes then
  kOwnerDoesNotLook,    // whether the other is in
  kPicksUpAfterTheEnd,  // the post of an operation that an abort has ended, without a look
};

// Rank 0 has posted its memory, aborts and takes it back; rank 1 picks the post up meanwhile.
template <typename Sync>
struct Loan {
  void UseIt(Use use, Misuse misuse) {
    if (!board.HasArrived(1)) return;
    const bool looks_first = misuse == Misuse::kLooksFirst;
    const bool may_look_first = MayUse(use);
    if (misuse != Misuse::kDoesNotEnter) {
      gate[1].Enter(use == Use::kRead ? BasicMemoryGate<Sync>::kReading
                                      : BasicMemoryGate<Sync>::kWriting);
    }
    bool may = looks_first ? may_look_first : MayUse(use);
    if (misuse == Misuse::kPicksUpAfterTheEnd) may = true;
    if (misuse == Misuse::kLeavesFirst) gate[1].Leave();
    if (may && use == Use::kRead && memory.Get() != 1 && MayUse(use)) Fail("another's bytes");
    if (may && use == Use::kWrite) memory.Set(3);
    if (misuse != Misuse::kLeavesFirst) gate[1].Leave();
  }
  bool MayUse(Use use) const {
    return use == Use::kRead ? !gate[0].is_closed() : !abort.is_thrown();
  }
  // As AbortSwitch::CloseMemory does; looks twice and gives up then, where Progress goes on.
  void TakeItBack(Misuse misuse) {
    memory.Set(1);
    board.Arrive(1, uint64_t{1});
    bool is_quiet = gate[1].busy() == BasicMemoryGate<Sync>::kIdle;
    if (abort.Begin()) abort.Finish();
    gate[0].Close();
    for (int look = 0; look < 2; ++look) {
      if (misuse != Misuse::kOwnerLooksFirst) {
        is_quiet = gate[1].busy() == BasicMemoryGate<Sync>::kIdle;
      }
      if (misuse == Misuse::kOwnerDoesNotLook) is_quiet = true;
      if (!is_quiet) continue;
      memory.Set(2);  // it is the user's again
      if (memory.Get() != 2) Fail("somebody wrote what its owner had back");
      return;
    }
  }

  BasicBoard<Sync, Plain<uint64_t>> board;
  BasicMemoryGate<Sync> gate[2];
  BasicAbortState<Sync> abort;
  Plain<int> memory;
};

// What the words that say who is in are weakened to.
struct WeakSync : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    T load() const { return Base::load(std::memory_order_acquire); }
    void store(T value, std::memory_order = std::memory_order_release) {
      Base::store(value, std::memory_order_release);
    }
  };
};

template <typename Sync = ModelSync>
Outcome MemoryIsTakenBack(Use use, Misuse misuse = Misuse::kNone) {
  return Explore([=] {
    auto loan = std::make_shared<Loan<Sync>>();
    Program program;
    program.threads.push_back([=] { loan->TakeItBack(misuse); });
    program.threads.push_back([=] { loan->UseIt(use, misuse); });
    return program;
  });
}
void ExpectFound(Misuse misuse) {
  ExpectWrong(MemoryIsTakenBack(Use::kRead, misuse), "data race");
  ExpectWrong(MemoryIsTakenBack(Use::kWrite, misuse), "data race");
}

TEST(MemoryModelTest, NobodyUsesMemoryThatItsOwnerHasBack) {
  ExpectRight(MemoryIsTakenBack(Use::kRead));
  ExpectRight(MemoryIsTakenBack(Use::kWrite));
}
TEST(MemoryModelTest, ALookBeforeTheWordThatItIsInIsFound) { ExpectFound(Misuse::kLooksFirst); }
TEST(MemoryModelTest, AUseWithoutTheWordThatItIsInIsFound) { ExpectFound(Misuse::kDoesNotEnter); }
TEST(MemoryModelTest, AUseAfterTheWordThatItIsOutIsFound) { ExpectFound(Misuse::kLeavesFirst); }
TEST(MemoryModelTest, AnOwnerThatLooksBeforeItClosesIsFound) {
  ExpectFound(Misuse::kOwnerLooksFirst);
}
TEST(MemoryModelTest, AnOwnerThatDoesNotLookIsFound) { ExpectFound(Misuse::kOwnerDoesNotLook); }
TEST(MemoryModelTest, APostThatIsPickedUpAfterAnAbortIsFound) {
  ExpectFound(Misuse::kPicksUpAfterTheEnd);
}
TEST(MemoryModelTest, WordsThatAreOnlyReleaseAndAcquireAreFound) {
  ExpectWrong(MemoryIsTakenBack<WeakSync>(Use::kRead), "data race");
  ExpectWrong(MemoryIsTakenBack<RelaxedSync>(Use::kWrite), "data race");
}

}  // namespace
}  // namespace pelton::shm
