// A sender and a receiver that sleep, one of which dies after any of its steps, in every order of
// small programs, and the mistakes that this finds.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/transport/shm/abort_words.h"
#include "comm/transport/shm/channel.h"
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
constexpr char kEndless[] = "a run without an end";
constexpr char kForEver[] = "looks for what nobody writes any more";
constexpr size_t kEntries = 2;
constexpr int kMostSends = 3;
constexpr int kSender = 0;
constexpr int kReceiver = 1;
constexpr int kThird = 2;  // takes no part in the sends
constexpr int kNobody = -1;

enum class Mistake {
  kNone,
  kPostsFirst,              // and writes the second half of the message then
  kRingsNoReceiver,         // when it has posted
  kRingsNoSender,           // when it has answered
  kNobodyWatches,           // whether the others live
  kAbortsInSilence,         // without a ring
  kFailsAtOnce,             // and does not look for what had come before the death
  kLooksOnceItIsWritten,    // that is, not while its own watcher still writes the reason
  kWaitsForTheDead,         // to leave the memory
  kTakesMemoryBackAtOnce,   // and does not look whether the other one reads there
  kReadsWhatWasTakenBack,   // does not look whether it may
  kUsesAnEntryTooEarly,     // before its last post was answered
  kEndsByTheReadOfTheDead,  // and not by what the watcher tells
  kErrorsAreMoves,          // also after the end, so that it goes on and on
};

struct Death {
  int mortal = kNobody;
  int told = kReceiver;  // who hears of a third rank's death
  int sends = 1;
  bool is_private = false;  // what is sent goes with its process
  Mistake mistake = Mistake::kNone;
  int most_preemptions = 1;
};

// A sender and a receiver, which do as ShmCommunicator, PointToPoint and AbortSwitch do, with their
// looks, words and rings in the same order.
// Threads: the run's. Owns: all of it.
template <typename Sync>
class Ranks {
 public:
  explicit Ranks(const Death& how) : how_(how) {}

  void Run(int rank) {
    if (rank == kSender) {
      for (int i = 0; i < how_.sends; ++i) WriteMessage(i);
    }
    while (!has_done_all_[rank] && !has_failed_[rank]) {
      // Whoever leaves memory after an abort rings nobody; the park ends by its own limit then.
      const bool has_ended = ReasonOf(rank).has_value();
      if (Progress(rank)) continue;
      if (has_ended) {
        interleavings::AwaitWrite();
        continue;
      }
      bell_[rank].Park(
          asleep_, wake_[rank], [&] { return Progress(rank) || ReasonOf(rank).has_value(); },
          [] { return absl::InfiniteDuration(); });
    }
  }

  // As Links' thread of `rank` does. A third rank may have died at any time.
  void Watch(int rank) {
    const bool is_third = how_.mortal == kThird;
    if (!is_third && !interleavings::AwaitEnd(static_cast<size_t>(how_.mortal))) return;
    was_killed_ = true;
    if (how_.mistake == Mistake::kNobodyWatches) return;
    if (!is_third) loss_[rank].store(1);
    Throw(rank, how_.mortal, /*is_death=*/true);
  }

  // Whoever lives has done all, or names the dead one. What was sent is received, unless its memory
  // has gone with its process or was taken back, and what was answered counts as sent.
  void CheckEnds() const {
    for (const int rank : {kSender, kReceiver}) {
      if (rank == how_.mortal && was_killed_) continue;
      if (has_done_all_[rank]) continue;
      if (!was_killed_) Fail("an end, and nobody has died");
      if (blamed_[rank] != how_.mortal) Fail("it names another one");
    }
    if (how_.mortal == kSender && !how_.is_private && received_ < channel_.posted()) {
      Fail("what was sent before the death is lost");
    }
    if (how_.mortal == kReceiver && sent_ != answered_) Fail("an answer of the dead is lost");
  }

 private:
  using Channel = BasicChannel<Sync, Plain, int, kEntries>;
  using Gate = BasicMemoryGate<ModelSync>;
  static constexpr int kRanks = 3;
  struct Reason {
    int rank = kNobody;
    bool is_death = false;
  };
  struct Transfer {
    bool is_matched = false;  // a send: is posted
    bool is_done = false;
    uint16_t entry = 0;
  };

  // As ShmCommunicator::Progress.
  bool Progress(int rank) {
    if (has_done_all_[rank] || has_failed_[rank]) return true;
    if (!abort_.is_thrown()) return Step(rank);
    const std::optional<Reason> reason = ReasonOf(rank);
    if (!reason.has_value()) return false;
    // It may have all that it needs.
    if (reason->is_death && LooksOnceMore() && Step(rank)) return true;
    if (!TakeMemoryBack(rank)) return false;
    blamed_[rank] = reason->rank;
    return has_failed_[rank] = true;
  }

  bool LooksOnceMore() const {
    if (how_.mistake == Mistake::kLooksOnceItIsWritten) return abort_.is_ready();
    return how_.mistake != Mistake::kFailsAtOnce;
  }

  // As PointToPoint::Step.
  bool Step(int rank) {
    bool moved = false;
    if (rank == kReceiver) LookForPosts();
    bool are_all_done = true;
    bool is_blocked = false;
    for (int i = 0; i < how_.sends; ++i) {
      Transfer& transfer = transfers_[rank][i];
      if (!transfer.is_done) {
        moved |= rank == kSender ? StepSend(i, transfer, is_blocked) : StepReceive(i, transfer);
      }
      are_all_done &= transfer.is_done;
    }
    has_done_all_[rank] = are_all_done;
    return moved;
  }

  bool StepSend(int i, Transfer& send, bool& is_blocked) {
    if (!send.is_matched) {
      if (is_blocked || !TakeEntry(send.entry)) {
        is_blocked = true;
        return false;
      }
      send.is_matched = true;
      channel_.Post(posted_++, send.entry, 1 + i);
      if (how_.mistake == Mistake::kPostsFirst) SetHalf(i, 1);
      if (how_.mistake != Mistake::kRingsNoReceiver) bell_[kReceiver].Ring(asleep_);
      return true;
    }
    const uint32_t answer = channel_.AnswerIn(send.entry);
    if (answer == Channel::kPending) return false;
    if (channel_.ReplyIn(send.entry) != 11 + i) Fail("another's reply");
    free_.push_back(send.entry);
    ++sent_;
    for (Plain<int>& half : memory_[i]) half.Set(-1);  // it is the user's again
    return send.is_done = true;
  }
  bool TakeEntry(uint16_t& entry) {
    if (free_.empty() && how_.mistake == Mistake::kUsesAnEntryTooEarly) free_.push_back(0);
    if (free_.empty()) return false;
    entry = free_.back();
    free_.pop_back();
    return true;
  }

  void LookForPosts() {
    const uint64_t posted = channel_.posted();
    for (; seen_ < posted; ++seen_) unmatched_.push_back(channel_.EntryOf(seen_));
  }
  // Receives have the tags of the last message first.
  bool StepReceive(int i, Transfer& receive) {
    const int tag = how_.sends - i;
    if (!receive.is_matched && !Match(tag, receive)) return false;
    gate_[kReceiver].Enter(Gate::kReading);
    const std::optional<bool> is_read = Read(tag - 1);
    gate_[kReceiver].Leave();
    if (is_read.has_value() && !*is_read) return FailToRead();
    if (!is_read.has_value()) return false;  // for the abort to end it
    channel_.AnswerPost(receive.entry, Channel::kReceived, 10 + tag);
    ++answered_;
    if (how_.mistake != Mistake::kRingsNoSender) bell_[kSender].Ring(asleep_);
    ++received_;
    return receive.is_done = true;
  }
  bool Match(int tag, Transfer& receive) {
    for (auto entry = unmatched_.begin(); entry != unmatched_.end(); ++entry) {
      if (channel_.PostIn(*entry) != tag) continue;
      receive.entry = *entry;
      unmatched_.erase(entry);
      return receive.is_matched = true;
    }
    return false;
  }
  // Nothing: the memory is the sender's again. False: its process has gone, and the memory with it.
  std::optional<bool> Read(int message) {
    if (!MayRead()) return std::nullopt;
    int halves[2];
    for (int half : {0, 1}) {
      if (half == 1) PassAStep();
      if (IsGone()) return MayRead() ? std::optional(false) : std::nullopt;
      halves[half] = memory_[message][half].Get();
    }
    if (!MayRead()) return std::nullopt;
    if (halves[0] != 1 + message || halves[1] != 1 + message) Fail("half a message");
    return true;
  }
  bool MayRead() const {
    return how_.mistake == Mistake::kReadsWhatWasTakenBack || !gate_[kSender].is_closed();
  }
  bool IsGone() const { return how_.is_private && interleavings::HasDied(kSender); }
  bool FailToRead() {
    // As PointToPoint once did, and ShmCommunicator.
    if (how_.mistake == Mistake::kErrorsAreMoves && abort_.is_thrown()) return true;
    if (how_.mistake == Mistake::kEndsByTheReadOfTheDead && !abort_.is_thrown()) {
      Throw(kReceiver, kReceiver, /*is_death=*/false);
      return true;
    }
    return false;  // for the watcher to tell
  }

  // As AbortSwitch::Throw; a rank's own reason is the first that it has given.
  void Throw(int rank, int blamed, bool is_death) {
    const int word = 1 + blamed + (is_death ? kRanks : 0);
    int none = 0;
    own_[rank].compare_exchange_strong(none, word);
    if (abort_.Begin()) {
      reason_.Set(word);
      abort_.Finish();
    }
    if (how_.mistake == Mistake::kAbortsInSilence) return;
    for (int peer : {kSender, kReceiver}) bell_[peer].RingAlways();
  }
  // As AbortSwitch::Reason.
  std::optional<Reason> ReasonOf(int rank) const {
    if (!abort_.is_thrown()) return std::nullopt;
    const int word = abort_.is_ready() ? reason_.Get() : own_[rank].load();
    if (word == 0) return std::nullopt;
    return Reason{(word - 1) % kRanks, word > kRanks};
  }
  // As AbortSwitch::CloseMemory, without the second after which a rank counts as stopped.
  bool TakeMemoryBack(int rank) {
    const int peer = 1 - rank;
    if (!std::exchange(has_closed_[rank], true)) gate_[rank].Close();
    const bool looks = how_.mistake != Mistake::kTakesMemoryBackAtOnce;
    if (looks && gate_[peer].busy() != Gate::kIdle) {
      const bool is_dead = peer == how_.mortal && loss_[rank].load() != 0;
      if (!is_dead || how_.mistake == Mistake::kWaitsForTheDead) return false;
    }
    if (rank == kReceiver) return true;
    for (int i = 0; i < how_.sends; ++i) {
      for (Plain<int>& half : memory_[i]) half.Set(-2);
    }
    return true;
  }

  void WriteMessage(int i) {
    SetHalf(i, 0);
    PassAStep();
    if (how_.mistake != Mistake::kPostsFirst) SetHalf(i, 1);
  }
  void SetHalf(int i, int half) { memory_[i][half].Set(1 + i); }
  // Where nothing but plain memory is used, for the others to come between, and death.
  void PassAStep() { step_.store(0, std::memory_order_relaxed); }

  const Death how_;
  Channel channel_;
  Plain<int> memory_[kMostSends][2];  // of the sender
  BasicDoorbell<ModelSync> bell_[2];
  interleavings::Atomic<uint32_t> asleep_{0};
  interleavings::Atomic<bool> wake_[2] = {false, false};
  Gate gate_[2];
  BasicAbortState<ModelSync> abort_;
  Plain<int> reason_;
  interleavings::Atomic<int> own_[2] = {0, 0};
  interleavings::Atomic<int> loss_[2] = {0, 0};
  interleavings::Atomic<int> step_{0};
  // Each rank's own.
  Transfer transfers_[2][kMostSends];
  bool has_closed_[2] = {};
  uint64_t posted_ = 0;
  std::vector<uint16_t> free_ = {1, 0};
  uint64_t seen_ = 0;
  std::vector<uint16_t> unmatched_;
  // For the end.
  bool has_done_all_[2] = {};
  bool has_failed_[2] = {};
  int blamed_[2] = {kNobody, kNobody};
  uint64_t sent_ = 0;
  uint64_t answered_ = 0;
  uint64_t received_ = 0;
  bool was_killed_ = false;
};

template <typename Sync = ModelSync>
Outcome OneDies(const Death& how) {
  return Explore(
      [how] {
        auto ranks = std::make_shared<Ranks<Sync>>(how);
        Program program;
        for (int rank : {kSender, kReceiver}) {
          program.threads.push_back([=] { ranks->Run(rank); });
          if (rank == how.mortal) program.mortal = static_cast<size_t>(rank);
        }
        const int survivor = how.mortal == kThird ? how.told : 1 - how.mortal;
        if (how.mortal != kNobody) program.threads.push_back([=] { ranks->Watch(survivor); });
        program.at_end = [=] { ranks->CheckEnds(); };
        return program;
      },
      how.most_preemptions);
}

// Stores of words of a kind are only relaxed.
template <typename Word>
struct RelaxedStores : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      Base::store(value, std::is_same_v<T, Word> ? std::memory_order_relaxed : order);
    }
  };
};

TEST(ChannelDeathModelTest, RanksThatSleepWakeEachOther) {
  ExpectRight(OneDies({.most_preemptions = 3}));
  ExpectRight(OneDies({.sends = 3}));
}
TEST(ChannelDeathModelTest, APostOrAnAnswerThatNobodyRingsForIsFound) {
  ExpectWrong(OneDies({.mistake = Mistake::kRingsNoReceiver}), kLost);
  ExpectWrong(OneDies({.mistake = Mistake::kRingsNoSender}), kLost);
}

// All that had been sent is received, and the rest names the sender.
TEST(ChannelDeathModelTest, AReceiverOutlivesItsSender) {
  ExpectRight(OneDies({.mortal = kSender}));
  ExpectRight(OneDies({.mortal = kSender, .sends = 2}));
  ExpectRight(OneDies({.mortal = kSender, .sends = 3, .most_preemptions = 0}));
}
// Memory that goes with its process is read, or the sender is named.
TEST(ChannelDeathModelTest, AReceiverOutlivesASenderWhoseMemoryIsGone) {
  ExpectRight(OneDies({.mortal = kSender, .is_private = true}));
  ExpectRight(OneDies({.mortal = kSender, .sends = 2, .is_private = true, .most_preemptions = 0}));
}
TEST(ChannelDeathModelTest, ASenderOutlivesItsReceiver) {
  ExpectRight(OneDies({.mortal = kReceiver}));
  ExpectRight(OneDies({.mortal = kReceiver, .sends = 2}));
  ExpectRight(OneDies({.mortal = kReceiver, .sends = 3, .most_preemptions = 0}));
}
// Both live, and the receiver may be reading when the sender takes its memory back.
TEST(ChannelDeathModelTest, TheDeathOfAThirdRankEndsBothEnds) {
  for (const int told : {kSender, kReceiver}) {
    ExpectRight(OneDies({.mortal = kThird, .told = told}));
    ExpectRight(OneDies({.mortal = kThird, .told = told, .sends = 3, .most_preemptions = 0}));
  }
}

TEST(ChannelDeathModelTest, HalfAMessageOfTheDeadIsFound) {
  EXPECT_NE(OneDies({.mortal = kSender, .mistake = Mistake::kPostsFirst}).error, "");
}
TEST(ChannelDeathModelTest, ADeathThatNobodyTellsOfIsFound) {
  for (const int mortal : {kSender, kReceiver}) {
    ExpectWrong(OneDies({.mortal = mortal, .mistake = Mistake::kNobodyWatches}), kLost);
    ExpectWrong(OneDies({.mortal = mortal, .mistake = Mistake::kAbortsInSilence}), kLost);
  }
}
TEST(ChannelDeathModelTest, WhatWasSentBeforeTheDeathAndIsDroppedIsFound) {
  ExpectWrong(OneDies({.mortal = kSender, .mistake = Mistake::kFailsAtOnce}), "is lost");
  ExpectWrong(OneDies({.mortal = kReceiver, .mistake = Mistake::kFailsAtOnce}), "is lost");
  ExpectWrong(OneDies({.mortal = kSender, .mistake = Mistake::kLooksOnceItIsWritten}), "is lost");
}
TEST(ChannelDeathModelTest, ASenderThatWaitsForTheDeadToLeaveItsMemoryIsFound) {
  ExpectWrong(OneDies({.mortal = kReceiver, .mistake = Mistake::kWaitsForTheDead}), kForEver);
}
TEST(ChannelDeathModelTest, MemoryThatALiveRankStillReadsIsNotTakenBack) {
  ExpectWrong(OneDies({.mortal = kThird, .mistake = Mistake::kTakesMemoryBackAtOnce}), kRace);
  EXPECT_NE(OneDies({.mortal = kThird, .mistake = Mistake::kReadsWhatWasTakenBack}).error, "");
}
TEST(ChannelDeathModelTest, AnEntryThatIsUsedAgainWhileALiveRankReadsItIsFound) {
  EXPECT_NE(
      OneDies({.mortal = kSender, .sends = 3, .mistake = Mistake::kUsesAnEntryTooEarly}).error, "");
}
TEST(ChannelDeathModelTest, AReceiverThatBlamesItselfForTheMemoryOfTheDeadIsFound) {
  const Death how{
      .mortal = kSender, .is_private = true, .mistake = Mistake::kEndsByTheReadOfTheDead};
  ExpectWrong(OneDies(how), "it names another one");
}
TEST(ChannelDeathModelTest, AReceiverThatTriesToReadTheDeadForEverIsFound) {
  const Death how{.mortal = kSender, .is_private = true, .mistake = Mistake::kErrorsAreMoves};
  ExpectWrong(OneDies(how), kEndless);
}
TEST(ChannelDeathModelTest, APostOrAnAnswerOfTheDeadWithoutReleaseIsFound) {
  ExpectWrong(OneDies<RelaxedStores<uint64_t>>({.mortal = kSender}), kRace);
  ExpectWrong(OneDies<RelaxedStores<uint32_t>>({.mortal = kReceiver}), kRace);
}

}  // namespace
}  // namespace pelton::shm
