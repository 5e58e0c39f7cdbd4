// The messages of one edge in every order of small programs, with ranks that sleep and with one
// that dies, and the mistakes that this finds.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/transport/shm/doorbell.h"
#include "comm/transport/shm/edge_queue.h"
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
constexpr uint32_t kDepth = 2;
constexpr int kSender = 0;
constexpr int kReceiver = 1;

enum class Mistake {
  kNone,
  kPopsFirst,           // and reads the message then
  kAnswersFirst,        // and reads the tensor then
  kDoesNotRingForRoom,  // when it has taken a post out
  kLooksForRoomOnce,    // and says after that that it parks
  kFreesTooEarly,       // an entry whose answer it waits for
  kWritesBackTooEarly,  // a piece, without a look at how far its reader is
  kShowsReadFirst,      // and reads the piece then
  kNobodyWatches,       // whether the peer lives
};

// Memory with Get and Set, whose value a reference leads to, as in the product.
// Threads: the run's. Owns: the value.
template <typename T>
class Cell {
 public:
  const T& Get() const {
    interleavings::Touch(location_, /*writes=*/false);
    return value_;
  }
  void Set(const T& value) {
    interleavings::Touch(location_, /*writes=*/true);
    value_ = value;
  }

 private:
  const interleavings::Location location_ = interleavings::NewPlainLocation();
  T value_{};
};

// A tensor of one byte, in an entry. Threads: the run's. Owns: the byte.
class Tensor {
 public:
  void Write(const std::byte* from, size_t) { cell_.Set(static_cast<int>(*from)); }
  int Read() const { return cell_.Get(); }

 private:
  Plain<int> cell_;
};

struct Message {
  EdgeMessage::Place place = EdgeMessage::kInPost;
  bool waits = false;
};
using Messages = std::vector<Message>;

constexpr Message kSmall{EdgeMessage::kInPost};
constexpr Message kAnswered{EdgeMessage::kInPost, /*waits=*/true};
constexpr Message kMedium{EdgeMessage::kInEntry};
constexpr Message kMediumAnswered{EdgeMessage::kInEntry, /*waits=*/true};
constexpr Message kLarge{EdgeMessage::kInMemory, /*waits=*/true};

// Message `i` holds 1 + i. Of a large one there are two pieces, which the sender replaces in place
// as soon as they are read.
// Threads: the run's. Owns: the queue, both ends and the bells.
template <typename Sync>
class Edge {
 public:
  using Queue = BasicEdgeQueue<Sync, Cell, Tensor, kDepth>;

  Edge(Messages messages, Mistake mistake)
      : messages_(std::move(messages)), mistake_(mistake), waiting_(messages_.size(), kNoEntry) {}

  // As Neighbors does, with one operation behind the other.
  void Send() {
    for (size_t i = 0; i < messages_.size(); ++i) {
      ParkUntil(kSender, [&] { return has_lost_ || TryPost(i); });
      if (has_lost_) return TakeMemoryBack();
      Ring(kReceiver);
      if (messages_[i].place != EdgeMessage::kInMemory) continue;
      WriteBack(i);
      AwaitAnswer(i);
    }
    for (size_t i = 0; i < messages_.size(); ++i) AwaitAnswer(i);
    if (has_lost_) TakeMemoryBack();
  }

  void Receive() {
    for (size_t i = 0; i < messages_.size(); ++i) {
      const EdgeMessage* next = nullptr;
      ParkUntil(kReceiver, [&] {
        next = receiver_.Next();
        return next != nullptr || has_lost_;
      });
      if (next == nullptr) return;  // the operation ends by the abort
      if (mistake_ == Mistake::kPopsFirst) Pop();
      const EdgeMessage message =
          mistake_ == Mistake::kPopsFirst ? queue_.posts[i % kDepth].message.Get() : *next;
      if (mistake_ != Mistake::kPopsFirst) Pop();
      if (message.tag != static_cast<int32_t>(i)) Fail("another message than the next one");
      if (mistake_ == Mistake::kAnswersFirst) Answer(message);
      CheckTensor(message);
      if (mistake_ != Mistake::kAnswersFirst) Answer(message);
    }
    has_received_all_ = true;
  }

  // As Links' thread does for `rank`: it aborts when the other one is killed.
  void Watch(int rank) {
    if (!interleavings::AwaitEnd(static_cast<size_t>(1 - rank))) return;
    if (mistake_ == Mistake::kNobodyWatches) return;
    lost_.store(1);
    bell_[rank].RingAlways();
  }

  // After a run in which nobody was killed.
  void ExpectAllReceived() const {
    if (!has_received_all_) Fail("a message is missing");
  }

 private:
  static constexpr int kNoEntry = -1;

  // As ShmCommunicator::Progress begins.
  bool Looks(const std::function<bool()>& is_done) {
    has_lost_ = lost_.load() != 0;
    return is_done();
  }
  void ParkUntil(int rank, const std::function<bool()>& is_done) {
    while (!Looks(is_done)) {
      const bool looks_once = mistake_ == Mistake::kLooksForRoomOnce && rank == kSender;
      bell_[rank].Park(
          asleep_, wake_[rank], [&] { return !looks_once && Looks(is_done); },
          [] { return absl::InfiniteDuration(); });
      if (looks_once) continue;
      // What the look has found is done, and must not be done twice.
      if (is_done_by_look_) return void(is_done_by_look_ = false);
    }
    is_done_by_look_ = false;
  }
  void Ring(int rank) { bell_[rank].Ring(asleep_); }

  bool TryPost(size_t i) {
    EdgeMessage message;
    message.tag = static_cast<int32_t>(i);
    message.place = messages_[i].place;
    const auto value = static_cast<std::byte>(1 + i);
    if (message.place == EdgeMessage::kInMemory) {
      for (Plain<int>& piece : memory_) piece.Set(static_cast<int>(1 + i));
    }
    if (!sender_.Post(message, &value, 1, messages_[i].waits)) return false;
    if (messages_[i].waits) waiting_[i] = message.entry;
    if (messages_[i].waits && mistake_ == Mistake::kFreesTooEarly) sender_.FreeEntry(message.entry);
    return is_done_by_look_ = true;
  }
  void WriteBack(size_t i) {
    const typename Queue::Entry& entry = sender_.entry(static_cast<uint8_t>(waiting_[i]));
    for (uint64_t piece = 0; piece < 2; ++piece) {
      ParkUntil(kSender, [&] {
        const bool is_read =
            entry.read_bytes.load() > piece || entry.answer.load() != Queue::kPending;
        return is_read || has_lost_ || mistake_ == Mistake::kWritesBackTooEarly;
      });
      if (has_lost_) return;
      memory_[piece].Set(-1);
    }
  }
  void AwaitAnswer(size_t i) {
    if (waiting_[i] == kNoEntry || has_lost_) return;
    const typename Queue::Entry& entry = sender_.entry(static_cast<uint8_t>(waiting_[i]));
    uint32_t answer = Queue::kPending;
    ParkUntil(kSender, [&] {
      answer = entry.answer.load();
      return answer != Queue::kPending || has_lost_;
    });
    if (answer == Queue::kPending) return;
    if (answer == Queue::kDifferent && entry.reply.Get().count != i) Fail("another's reply");
    if ((answer == Queue::kDifferent) != (i % 2 == 1)) Fail("another's answer");
    if (mistake_ != Mistake::kFreesTooEarly) sender_.FreeEntry(static_cast<uint8_t>(waiting_[i]));
    waiting_[i] = kNoEntry;
  }
  // Nobody reads it any more.
  void TakeMemoryBack() {
    for (Plain<int>& piece : memory_) piece.Set(-2);
  }

  void Pop() {
    receiver_.Pop();
    if (mistake_ != Mistake::kDoesNotRingForRoom) Ring(kSender);
  }
  void CheckTensor(const EdgeMessage& message) {
    const int wanted = message.tag + 1;
    if (message.place == EdgeMessage::kInMemory) {
      for (uint64_t piece = 0; piece < 2; ++piece) {
        if (mistake_ == Mistake::kShowsReadFirst) ShowRead(message, piece);
        if (memory_[piece].Get() != wanted) Fail("another piece");
        if (mistake_ != Mistake::kShowsReadFirst) ShowRead(message, piece);
      }
      return;
    }
    const int value = message.place == EdgeMessage::kInEntry ? receiver_.tensor(message.entry)
                                                             : static_cast<int>(message.bytes[0]);
    if (value != wanted) Fail("another tensor");
  }
  void ShowRead(const EdgeMessage& message, uint64_t piece) {
    receiver_.ShowRead(message.entry, piece + 1);
    Ring(kSender);
  }
  void Answer(const EdgeMessage& message) {
    if (!message.has_entry()) return;
    Operation reply;
    reply.count = static_cast<uint64_t>(message.tag);
    receiver_.Answer(message.entry, message.tag % 2 == 1 ? Queue::kDifferent : Queue::kReceived,
                     reply);
    Ring(kSender);
  }

  const Messages messages_;
  const Mistake mistake_;
  Queue queue_;
  BasicEdgeSender<Queue> sender_{queue_};
  BasicEdgeReceiver<Queue> receiver_{queue_};
  BasicDoorbell<ModelSync> bell_[2];
  interleavings::Atomic<uint32_t> asleep_{0};
  interleavings::Atomic<bool> wake_[2] = {false, false};
  interleavings::Atomic<int> lost_{0};  // told by the survivor's watcher
  Plain<int> memory_[2];                // of the sender
  std::vector<int> waiting_;            // for an answer: the entry, by message
  bool has_lost_ = false;               // as the survivor has seen it
  bool is_done_by_look_ = false;        // by the sender
  bool has_received_all_ = false;
};

struct Limits {
  int most_preemptions = 3;
  size_t mortal = Program::kNobody;
};
template <typename Sync = ModelSync>
Outcome Exchange(const Messages& messages, Mistake mistake = Mistake::kNone, Limits limits = {}) {
  return Explore(
      [=] {
        auto edge = std::make_shared<Edge<Sync>>(messages, mistake);
        Program program;
        program.mortal = limits.mortal;
        program.threads.push_back([=] { edge->Send(); });
        program.threads.push_back([=] { edge->Receive(); });
        if (limits.mortal != Program::kNobody) {
          program.threads.push_back([=] { edge->Watch(1 - static_cast<int>(limits.mortal)); });
        } else {
          program.at_end = [=] { edge->ExpectAllReceived(); };
        }
        return program;
      },
      limits.most_preemptions);
}

// Stores are only releases.
struct Releases : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      const bool is_strong = order == std::memory_order_seq_cst;
      Base::store(value, is_strong ? std::memory_order_release : order);
    }
  };
};
// Words of 32 bits are stored without release.
struct Relaxed : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      Base::store(value, std::is_same_v<T, uint32_t> ? std::memory_order_relaxed : order);
    }
  };
};
// An entry that is used again keeps what its last reader has left there.
struct ForgetsToClear : ModelSync {
  template <typename T>
  struct Atomic : interleavings::Atomic<T> {
    using Base = interleavings::Atomic<T>;
    using Base::Base;
    void store(T value, std::memory_order order = std::memory_order_seq_cst) {
      if (order != std::memory_order_relaxed) Base::store(value, order);
    }
  };
};

// Three messages over a ring of two and two entries.
TEST(EdgeQueueModelTest, EveryMessageComesOnceWholeAndInItsTurn) {
  ExpectRight(Exchange({kSmall, kSmall, kSmall}));
  ExpectRight(Exchange({kMedium, kMedium, kMedium}, Mistake::kNone, {2}));
  ExpectRight(Exchange({kMedium, kAnswered, kSmall}, Mistake::kNone, {2}));
  ExpectRight(Exchange({kMediumAnswered, kMedium, kAnswered}, Mistake::kNone, {2}));
}
TEST(EdgeQueueModelTest, APieceIsReplacedOnceItIsReadAndItsEntryIsUsedAgain) {
  ExpectRight(Exchange({kLarge}));
  ExpectRight(Exchange({kLarge, kLarge}, Mistake::kNone, {2}));
  ExpectRight(Exchange({kLarge, kSmall, kMedium}, Mistake::kNone, {2}));
}

TEST(EdgeQueueModelTest, AMessageThatIsReadAfterItWasTakenOutIsFound) {
  ExpectWrong(Exchange({kSmall, kSmall, kSmall}, Mistake::kPopsFirst), kRace);
}
TEST(EdgeQueueModelTest, AnAnswerBeforeTheTensorIsReadIsFound) {
  ExpectWrong(Exchange({kMedium, kMedium, kMedium}, Mistake::kAnswersFirst), kRace);
}
TEST(EdgeQueueModelTest, ASenderThatIsNotRungForRoomIsFound) {
  ExpectWrong(Exchange({kSmall, kSmall, kSmall}, Mistake::kDoesNotRingForRoom), kLost);
}
TEST(EdgeQueueModelTest, ALookForRoomBeforeTheWordThatItParksIsFound) {
  ExpectWrong(Exchange({kSmall, kSmall, kSmall}, Mistake::kLooksForRoomOnce), kLost);
}
TEST(EdgeQueueModelTest, AnEntryThatIsFreedBeforeItsAnswerIsFound) {
  EXPECT_NE(Exchange({kMediumAnswered, kMediumAnswered}, Mistake::kFreesTooEarly).error, "");
}
TEST(EdgeQueueModelTest, APieceThatIsReplacedTooEarlyIsFound) {
  EXPECT_NE(Exchange({kLarge}, Mistake::kWritesBackTooEarly).error, "");
  EXPECT_NE(Exchange({kLarge}, Mistake::kShowsReadFirst).error, "");
}
TEST(EdgeQueueModelTest, APostOrARoomThatIsShownByAReleaseOnlyIsFound) {
  ExpectWrong(Exchange<Releases>({kSmall, kSmall, kSmall}), kLost);
}
TEST(EdgeQueueModelTest, WordsWithoutReleaseAreFound) {
  ExpectWrong(Exchange<Relaxed>({kSmall}), kRace);
}
TEST(EdgeQueueModelTest, AnEntryThatIsNotClearedBeforeItIsUsedAgainIsFound) {
  EXPECT_NE(Exchange<ForgetsToClear>({kLarge, kLarge}, Mistake::kNone, {2}).error, "");
}

// A process dies --------------------------------------------------------------------------------

// What has come is whole, and the survivor ends.
TEST(EdgeQueueModelTest, ASenderThatDiesLeavesNoHalfMessage) {
  ExpectRight(Exchange({kMedium}, Mistake::kNone, {2, kSender}));
  ExpectRight(Exchange({kSmall, kMedium}, Mistake::kNone, {0, kSender}));
  ExpectRight(Exchange({kLarge}, Mistake::kNone, {1, kSender}));
}
// Its memory is its own again once it knows that nobody reads there.
TEST(EdgeQueueModelTest, ASenderOutlivesItsReceiver) {
  ExpectRight(Exchange({kAnswered}, Mistake::kNone, {2, kReceiver}));
  ExpectRight(Exchange({kSmall, kSmall, kSmall}, Mistake::kNone, {0, kReceiver}));
  ExpectRight(Exchange({kLarge}, Mistake::kNone, {1, kReceiver}));
}
TEST(EdgeQueueModelTest, ADeathThatNobodyTellsOfIsFound) {
  ExpectWrong(Exchange({kSmall}, Mistake::kNobodyWatches, {2, kSender}), kLost);
  ExpectWrong(Exchange({kLarge}, Mistake::kNobodyWatches, {2, kReceiver}), kLost);
}
TEST(EdgeQueueModelTest, AMessageOfTheDeadWithoutReleaseIsFound) {
  ExpectWrong(Exchange<Relaxed>({kMedium}, Mistake::kNone, {2, kSender}), kRace);
}

}  // namespace
}  // namespace pelton::shm
