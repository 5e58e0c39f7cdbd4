// The collectives of two and three ranks that sleep, and that may die, in every order of small
// programs, and the mistakes that this finds.
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "comm/transport/shm/abort_words.h"
#include "comm/transport/shm/board.h"
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

constexpr char kLost[] = "a wake-up was lost";
constexpr char kRace[] = "data race";
constexpr char kForEver[] = "looks for what nobody writes any more";
constexpr int kMostRanks = 3;
constexpr int kNobody = -1;

enum class Mistake {
  kNone,
  kFirstRankRings,       // and not whoever came last
  kRingsItsNeighbour,    // alone
  kRingsFirst,           // and arrives then
  kArrivesFirst,         // and writes its data then
  kFinishesFirst,        // says that a task is done, and does it then
  kDoesNotRingAtTheEnd,  // of the last task
  kNobodyWatches,        // whether the others live
  kAbortsInSilence,      // without a ring
  kWaitsForTheReason,    // that the dead one was writing
  kWaitsForTheDead,      // to leave the memory
};

struct Case {
  int ranks = 3;
  uint64_t collectives = 1;
  uint64_t tasks = 0;       // per owner; none: eager
  int owners = kMostRanks;  // ranks from 0 on that have tasks
  Mistake mistake = Mistake::kNone;
  bool has_arrived = false;  // all ranks, before the run
  int mortal = kNobody;
  bool mortal_aborts = false;  // for a reason of its own, in place of its collectives
  int most_preemptions = 1;
};

// The ranks of a communicator. Each runs collectives as Collective, AbortSwitch and ShmCommunicator
// do, with their looks, words and rings in the same order.
// Threads: the run's. Owns: all of it.
template <typename Sync>
class Ranks {
 public:
  explicit Ranks(const Case& how) : how_(how) {
    if (!how.has_arrived) return;
    for (Board& board : board_) board.Arrive(1, uint64_t{1});
  }

  void Run(int rank) {
    if (how_.mortal_aborts && rank == how_.mortal) return Throw(rank, {rank, /*is_death=*/false});
    for (uint64_t sequence = 1; sequence <= how_.collectives; ++sequence) {
      if (!RunOne(rank, sequence)) return;
    }
    has_done_all_[rank] = true;
  }

  // As Links' thread of `rank` does.
  void Watch(int rank) {
    if (!interleavings::AwaitEnd(static_cast<size_t>(how_.mortal))) return;
    was_killed_ = true;
    if (how_.mistake == Mistake::kNobodyWatches) return;
    loss_[rank].store(1);
    Throw(rank, {how_.mortal, /*is_death=*/true});
  }

  // Whoever lives has done all, or names who has ended it.
  void CheckEnds() const {
    const bool may_fail = was_killed_ || how_.mortal_aborts;
    for (int rank = 0; rank < how_.ranks; ++rank) {
      if (rank == how_.mortal && may_fail) continue;
      if (!has_done_all_[rank] && !may_fail) Fail("an abort, and nobody has died");
      if (!has_done_all_[rank] && blamed_[rank] != how_.mortal) Fail("it names another one");
    }
  }

 private:
  using Board = BasicBoard<Sync, Plain<uint64_t>>;
  using Gate = BasicMemoryGate<ModelSync>;
  enum class Phase : uint8_t { kArrive, kWork, kFinish };
  // One rank's collective. Threads: its. Owns: nothing.
  struct State {
    uint64_t sequence;
    Phase phase = Phase::kArrive;
    int arrived_count = 0;   // ranks before this one have arrived
    int finished_count = 0;  // ranks before this one have finished
    bool is_done = false;
    bool has_failed = false;
    // After an abort. The product does all of it again at each look, and ranks that look as long as
    // others write would never end here.
    bool has_looked_for_tasks = false;
    bool has_closed = false;
  };
  struct Reason {
    int rank = kNobody;
    bool is_death = false;
  };

  // False: it has ended by an abort. Drives as a waiter does, and parks when nothing moves.
  bool RunOne(int rank, uint64_t sequence) {
    State state{sequence};
    if (how_.has_arrived) {
      state.phase = Phase::kWork;
    } else {
      Post(rank, state);
    }
    while (!state.is_done && !state.has_failed) {
      if (Progress(rank, state)) continue;
      // Whoever leaves memory after an abort rings nobody; the park ends by its own limit then.
      if (ReasonOf(rank).has_value()) {
        interleavings::AwaitWrite();
        continue;
      }
      bell_[rank].Park(
          asleep_, wake_[rank], [&] { return Progress(rank, state); },
          [] { return absl::InfiniteDuration(); });
    }
    return state.is_done;
  }

  // As Collective::Post.
  void Post(int rank, State& state) {
    const uint64_t sequence = state.sequence;
    if (how_.mistake == Mistake::kRingsFirst) RingAll(rank);
    if (how_.mistake == Mistake::kArrivesFirst) board_[rank].Arrive(sequence, sequence);
    Plain<uint64_t>(&slot)[2] = slot_[rank][sequence % Board::kDepth];
    slot[0].Set(DataOf(rank, sequence));
    PassAStep();
    slot[1].Set(DataOf(rank, sequence));
    if (how_.mistake != Mistake::kArrivesFirst) board_[rank].Arrive(sequence, sequence);
    if (how_.mistake == Mistake::kRingsFirst) return;
    if (how_.mistake == Mistake::kFirstRankRings && rank != 0) return;
    if (AllArrived(state)) RingAll(rank);
  }

  // As ShmCommunicator::Progress.
  bool Progress(int rank, State& state) {
    if (state.is_done || state.has_failed) return true;
    if (!abort_.is_thrown()) return Step(rank, state);
    const std::optional<Reason> reason = ReasonOf(rank);
    if (!reason.has_value()) return false;
    // It may have all that it needs.
    if (reason->is_death && Step(rank, state)) return true;
    if (!TakeMemoryBack(rank, state)) return false;
    blamed_[rank] = reason->rank;
    return state.has_failed = true;
  }

  bool Step(int rank, State& state) {
    if (state.phase == Phase::kArrive) {
      if (!AllArrived(state)) return false;
      CheckPosts(state.sequence);
      state.is_done = how_.tasks == 0;
      state.phase = Phase::kWork;
      return true;
    }
    if (state.phase == Phase::kWork) return RunAnyTask(rank, state);
    if (!AllFinished(state)) return false;
    for (int owner = 0; owner < how_.ranks; ++owner) {
      if (TasksOf(owner) == 0) continue;
      for (const Plain<uint64_t>& half : target_[rank][owner]) {
        if (half.Get() != DataOf(owner, state.sequence)) Fail("another result");
      }
    }
    return state.is_done = true;
  }

  // As Collective::RunAnyTask.
  bool RunAnyTask(int rank, State& state) {
    if (state.has_looked_for_tasks && !AllFinished(state)) return false;
    for (int i = 0; i < how_.ranks; ++i) {
      const int owner = (rank + i) % how_.ranks;
      gate_[rank].Enter(Gate::kWriting);
      if (abort_.is_thrown()) {
        gate_[rank].Leave();
        state.has_looked_for_tasks = true;
        if (!AllFinished(state)) return false;
        break;
      }
      const bool has_task = board_[owner].Claim(state.sequence, TasksOf(owner)).has_value();
      if (!has_task) {
        gate_[rank].Leave();
        continue;
      }
      if (how_.mistake == Mistake::kFinishesFirst) board_[owner].MarkFinished();
      RunTask(owner, state.sequence);
      gate_[rank].Leave();
      if (how_.mistake != Mistake::kFinishesFirst) board_[owner].MarkFinished();
      return true;
    }
    state.phase = Phase::kFinish;
    if (AllFinished(state) && how_.mistake != Mistake::kDoesNotRingAtTheEnd) RingAll(rank);
    return true;
  }
  uint64_t TasksOf(int owner) const { return owner < how_.owners ? how_.tasks : 0; }
  // Writes the owner's part of all ranks' targets.
  void RunTask(int owner, uint64_t sequence) {
    for (int peer = 0; peer < how_.ranks; ++peer) {
      target_[peer][owner][0].Set(DataOf(owner, sequence));
    }
    PassAStep();
    for (int peer = 0; peer < how_.ranks; ++peer) {
      target_[peer][owner][1].Set(DataOf(owner, sequence));
    }
  }

  bool AllArrived(State& state) const {
    for (; state.arrived_count < how_.ranks; ++state.arrived_count) {
      if (!board_[state.arrived_count].HasArrived(state.sequence)) return false;
    }
    return true;
  }
  bool AllFinished(State& state) const {
    for (; state.finished_count < how_.ranks; ++state.finished_count) {
      if (!board_[state.finished_count].HasFinished(state.sequence, TasksOf(state.finished_count)))
        return false;
    }
    return true;
  }
  void CheckPosts(uint64_t sequence) const {
    for (int peer = 0; peer < how_.ranks; ++peer) {
      if (board_[peer].PostOf(sequence) != sequence) Fail("another post");
      for (const Plain<uint64_t>& half : slot_[peer][sequence % Board::kDepth]) {
        if (half.Get() != DataOf(peer, sequence)) Fail("another slot's data");
      }
    }
  }
  static uint64_t DataOf(int rank, uint64_t sequence) {
    return sequence * 10 + static_cast<uint64_t>(rank);
  }

  // As Context::RingAll.
  void RingAll(int rank) {
    if (asleep_.load() == 0) return;
    for (int peer = 0; peer < how_.ranks; ++peer) {
      const bool is_next = peer == (rank + 1) % how_.ranks;
      if (how_.mistake == Mistake::kRingsItsNeighbour && !is_next) continue;
      if (peer != rank) bell_[peer].RingIfParked();
    }
  }

  // As AbortSwitch::Throw; a rank's own reason is the first that it has given.
  void Throw(int rank, Reason reason) {
    const int word = 1 + reason.rank + (reason.is_death ? kMostRanks : 0);
    int none = 0;
    own_[rank].compare_exchange_strong(none, word);
    if (abort_.Begin()) {
      reason_.Set(word);
      abort_.Finish();
    }
    if (how_.mistake == Mistake::kAbortsInSilence) return;
    for (int peer = 0; peer < how_.ranks; ++peer) bell_[peer].RingAlways();
  }
  // As AbortSwitch::Reason.
  std::optional<Reason> ReasonOf(int rank) const {
    if (!abort_.is_thrown()) return std::nullopt;
    const int own = how_.mistake == Mistake::kWaitsForTheReason ? 0 : own_[rank].load();
    const int word = abort_.is_ready() ? reason_.Get() : own;
    if (word == 0) return std::nullopt;
    return Reason{(word - 1) % kMostRanks, word > kMostRanks};
  }
  // As AbortSwitch::CloseMemory, without the second after which a rank counts as stopped.
  bool TakeMemoryBack(int rank, State& state) {
    if (!std::exchange(state.has_closed, true)) gate_[rank].Close();
    for (int peer = 0; peer < how_.ranks; ++peer) {
      if (peer == rank || gate_[peer].busy() == Gate::kIdle) continue;
      const bool is_dead = peer == how_.mortal && loss_[rank].load() != 0;
      if (!is_dead || how_.mistake == Mistake::kWaitsForTheDead) return false;
    }
    for (Plain<uint64_t>(&part)[2] : target_[rank]) {
      for (Plain<uint64_t>& half : part) half.Set(0);
    }
    return true;
  }
  // Where nothing but plain memory is used, for the others to come between, and death.
  void PassAStep() {
    if (how_.mortal != kNobody) step_.store(0, std::memory_order_relaxed);
  }

  const Case how_;
  Board board_[kMostRanks];
  BasicDoorbell<ModelSync> bell_[kMostRanks];
  interleavings::Atomic<uint32_t> asleep_{0};
  interleavings::Atomic<bool> wake_[kMostRanks] = {false, false, false};
  Gate gate_[kMostRanks];
  BasicAbortState<ModelSync> abort_;
  Plain<int> reason_;
  interleavings::Atomic<int> own_[kMostRanks] = {0, 0, 0};
  interleavings::Atomic<int> loss_[kMostRanks] = {0, 0, 0};
  interleavings::Atomic<int> step_{0};
  Plain<uint64_t> slot_[kMostRanks][Board::kDepth][2];
  Plain<uint64_t> target_[kMostRanks][kMostRanks][2];  // by rank and by owner of the task
  // For the end.
  bool has_done_all_[kMostRanks] = {};
  int blamed_[kMostRanks] = {kNobody, kNobody, kNobody};
  bool was_killed_ = false;
};

template <typename Sync = ModelSync>
Outcome RanksRun(const Case& how) {
  return Explore(
      [how] {
        auto ranks = std::make_shared<Ranks<Sync>>(how);
        Program program;
        for (int rank = 0; rank < how.ranks; ++rank) {
          program.threads.push_back([=] { ranks->Run(rank); });
        }
        if (how.mortal != kNobody) program.mortal = static_cast<size_t>(how.mortal);
        for (int rank = 0; rank < how.ranks && how.mortal != kNobody; ++rank) {
          if (rank != how.mortal) program.threads.push_back([=] { ranks->Watch(rank); });
        }
        program.at_end = [=] { ranks->CheckEnds(); };
        return program;
      },
      how.most_preemptions);
}

// Arrivals and counts are only released.
struct Releases : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    T fetch_add(T by) { return Base::fetch_add(by, std::memory_order_acq_rel); }
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      const bool is_strong = order == std::memory_order_seq_cst;
      Base::store(value, is_strong ? std::memory_order_release : order);
    }
  };
};

// Three ranks -----------------------------------------------------------------------------------

TEST(CollectiveModelTest, OfThreeRanksTheLastOneToArriveWakesTheOthers) {
  ExpectRight(RanksRun({}));
  ExpectRight(RanksRun({.collectives = 3, .most_preemptions = 0}));
}
TEST(CollectiveModelTest, ARankThatRingsForTheOthersIsFound) {
  ExpectWrong(RanksRun({.mistake = Mistake::kFirstRankRings}), kLost);
}
TEST(CollectiveModelTest, ARankThatIsNotRungIsFound) {
  ExpectWrong(RanksRun({.mistake = Mistake::kRingsItsNeighbour}), kLost);
}
TEST(CollectiveModelTest, ARingBeforeTheArrivalIsFound) {
  ExpectWrong(RanksRun({.mistake = Mistake::kRingsFirst}), kLost);
}
TEST(CollectiveModelTest, AnArrivalThatIsOnlyAReleaseIsFound) {
  ExpectWrong(RanksRun<Releases>({}), kLost);
}
TEST(CollectiveModelTest, AnArrivalBeforeItsDataIsFound) {
  ExpectWrong(RanksRun({.mistake = Mistake::kArrivesFirst}), kRace);
}

TEST(CollectiveModelTest, OfThreeRanksWhoeverDoesTheLastTaskWakesTheOthers) {
  ExpectRight(RanksRun({.tasks = 1}));
}
TEST(CollectiveModelTest, AnEndThatNobodyRingsForIsFound) {
  ExpectWrong(RanksRun({.tasks = 1, .mistake = Mistake::kDoesNotRingAtTheEnd}), kLost);
}
TEST(CollectiveModelTest, ATaskThatIsFinishedBeforeItIsDoneIsFoundWithThreeRanks) {
  ExpectWrong(RanksRun({.tasks = 1, .mistake = Mistake::kFinishesFirst}), kRace);
}

// A rank dies between two steps -----------------------------------------------------------------

TEST(DeathModelTest, OfTwoRanksTheOtherOneEndsAndNamesIt) {
  ExpectRight(RanksRun({.ranks = 2, .mortal = 1}));
  ExpectRight(RanksRun({.ranks = 2, .tasks = 1, .has_arrived = true, .mortal = 1}));
}
TEST(DeathModelTest, OfThreeRanksBothOthersEndAndNameIt) {
  ExpectRight(RanksRun({.mortal = 2, .most_preemptions = 0}));
  ExpectRight(
      RanksRun({.tasks = 1, .owners = 1, .has_arrived = true, .mortal = 2, .most_preemptions = 0}));
}
TEST(DeathModelTest, ADeathThatNobodyTellsOfIsFound) {
  ExpectWrong(RanksRun({.ranks = 2, .mistake = Mistake::kNobodyWatches, .mortal = 1}), kLost);
}
TEST(DeathModelTest, AnAbortWithoutARingIsFound) {
  ExpectWrong(RanksRun({.ranks = 2, .mistake = Mistake::kAbortsInSilence, .mortal = 1}), kLost);
}
TEST(DeathModelTest, HalfAPostOfTheDeadIsFound) {
  ExpectWrong(RanksRun({.ranks = 2, .mistake = Mistake::kArrivesFirst, .mortal = 1}), kRace);
}
TEST(DeathModelTest, HalfATaskOfTheDeadIsFound) {
  const Case how{.ranks = 2, .tasks = 1, .mistake = Mistake::kFinishesFirst, .mortal = 1};
  EXPECT_NE(RanksRun(how).error, "");
}
TEST(DeathModelTest, AnOwnerThatWaitsForTheDeadToLeaveItsMemoryIsFound) {
  const Case how{.ranks = 2, .tasks = 1, .mistake = Mistake::kWaitsForTheDead, .mortal = 1};
  ExpectWrong(RanksRun(how), kForEver);
}
// It may die between the word that it aborts and the reason.
TEST(DeathModelTest, OfARankThatDiesWhileItAbortsTheOthersNameIt) {
  ExpectRight(RanksRun({.ranks = 2, .mortal = 1, .mortal_aborts = true}));
  ExpectRight(RanksRun({.mortal = 2, .mortal_aborts = true, .most_preemptions = 0}));
}
TEST(DeathModelTest, WhoeverWaitsForTheReasonOfTheDeadIsFound) {
  ExpectWrong(
      RanksRun(
          {.ranks = 2, .mistake = Mistake::kWaitsForTheReason, .mortal = 1, .mortal_aborts = true}),
      kLost);
}

// A rank dies while the ranks open a communicator -----------------------------------------------

enum class OpenMistake {
  kNone,
  kCounts,              // waits for the number of those that have opened
  kAsksForMissingOnly,  // whether they live
};

// As ShmTransport::Open does. The waits there have limits of their own, after which they look
// again. Rank 0 makes the control block.
// Threads: the run's. Owns: the words.
class Opening {
 public:
  static constexpr int kRanks = 3;

  Opening(int mortal, OpenMistake mistake) : mortal_(mortal), mistake_(mistake) {}

  void Open(int rank) {
    if (rank == 0) has_block_[1].store(1);
    if (rank != 0 && !TakeBlock(rank)) return;  // and names rank 0
    has_joined_[rank].store(1);
    if (mistake_ == OpenMistake::kCounts) joined_.fetch_add(1);
    // The socket to the last rank was full when the block was sent.
    if (rank == 0) has_block_[2].store(1);
    while (!IsOver(rank)) interleavings::AwaitWrite();
  }
  // As the threads of all survivors.
  void Watch() {
    if (!interleavings::AwaitEnd(static_cast<size_t>(mortal_))) return;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != mortal_) loss_[rank].store(1);
    }
  }

 private:
  // As Links::TakeArena.
  bool TakeBlock(int rank) const {
    while (has_block_[rank].load() == 0) {
      if (mortal_ == 0 && loss_[rank].load() != 0) return false;
      interleavings::AwaitWrite();
    }
    return true;
  }
  // As Join.
  bool IsOver(int rank) const {
    if (mistake_ == OpenMistake::kCounts && joined_.load() == kRanks) return true;
    bool are_all_there = mistake_ != OpenMistake::kCounts;
    bool may_ask = mistake_ == OpenMistake::kNone;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (has_joined_[peer].load() != 0) continue;
      are_all_there = false;
      may_ask |= peer == mortal_;
    }
    return are_all_there || (may_ask && loss_[rank].load() != 0);
  }

  const int mortal_;
  const OpenMistake mistake_;
  interleavings::Atomic<uint32_t> joined_{0};
  interleavings::Atomic<uint32_t> has_block_[kRanks] = {0, 0, 0};
  interleavings::Atomic<uint32_t> has_joined_[kRanks] = {0, 0, 0};
  interleavings::Atomic<uint32_t> loss_[kRanks] = {0, 0, 0};  // as each rank's watcher has found
};

Outcome RanksOpen(int mortal, OpenMistake mistake = OpenMistake::kNone) {
  return Explore(
      [=] {
        auto opening = std::make_shared<Opening>(mortal, mistake);
        Program program;
        program.mortal = static_cast<size_t>(mortal);
        for (int rank = 0; rank < Opening::kRanks; ++rank) {
          program.threads.push_back([=] { opening->Open(rank); });
        }
        program.threads.push_back([=] { opening->Watch(); });
        return program;
      },
      /*most_preemptions=*/0);
}

TEST(DeathModelTest, WhoeverOpensACommunicatorWaitsForNoRankThatIsDead) {
  ExpectRight(RanksOpen(/*mortal=*/0));
  ExpectRight(RanksOpen(/*mortal=*/2));
}
// It dies when it has said that it is there, and before it is counted: as Join once waited.
TEST(DeathModelTest, AWaitForTheNumberOfThoseThatHaveOpenedIsFound) {
  ExpectWrong(RanksOpen(/*mortal=*/2, OpenMistake::kCounts), kForEver);
}
// Rank 0 dies when it has opened, and one rank has no control block yet, so that this one ends
// without having opened: as Join waited after that.
TEST(DeathModelTest, AWaitForTheMissingThatAsksForThemOnlyIsFound) {
  ExpectWrong(RanksOpen(/*mortal=*/0, OpenMistake::kAsksForMissingOnly), kForEver);
}

}  // namespace
}  // namespace pelton::shm
