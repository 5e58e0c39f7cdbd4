// Posts of sends and their answers in every order of small programs, and the mistakes that this
// finds. channel_death_model_test.cc has ranks that sleep, and that die.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/transport/shm/channel.h"
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

enum class Mistake {
  kNone,
  kPostsFirst,           // and writes the memory that is sent then
  kUsesAnEntryTooEarly,  // before its last post was answered
  kTakesMemoryBack,      // before the answer
  kAnswersFirst,         // and reads the memory then
  kReadsTheEntryLater,   // that is, the post once more after its answer
  kReadsNumbersBeyond,   // of a post that has not come
};

constexpr size_t kEntries = 2;
constexpr int kMostSends = 3;

// A sender of `sends` messages, each in memory of its own, and their receiver.
template <typename Sync>
class Pair {
 public:
  using Channel = BasicChannel<Sync, Plain, int, kEntries>;

  explicit Pair(Mistake mistake) : mistake_(mistake) {}

  // As PointToPoint does with the sends of one step.
  void Send(int sends) {
    std::vector<int> entry_of(sends);
    std::vector<uint16_t> free = {1, 0};
    int answered = 0;
    for (int i = 0; i < sends; ++i) {
      if (free.empty() && mistake_ == Mistake::kUsesAnEntryTooEarly) free.push_back(0);
      if (free.empty()) {
        AwaitAnswer(answered, entry_of[answered]);
        free.push_back(static_cast<uint16_t>(entry_of[answered++]));
      }
      entry_of[i] = free.back();
      free.pop_back();
      if (mistake_ != Mistake::kPostsFirst) memory_[i].Set(1 + i);
      channel_.Post(i, static_cast<uint16_t>(entry_of[i]), 1 + i);
      if (mistake_ == Mistake::kPostsFirst) memory_[i].Set(1 + i);
      if (mistake_ == Mistake::kTakesMemoryBack) memory_[i].Set(0);
    }
    if (mistake_ == Mistake::kUsesAnEntryTooEarly) return;
    for (; answered < sends; ++answered) AwaitAnswer(answered, entry_of[answered]);
  }

  // Answers the newest first of those that it sees, as receives with tags in another order do.
  void Receive(int sends) {
    uint64_t seen = 0;
    std::vector<uint16_t> unmatched;
    for (int received = 0; received < sends; ++received) {
      while (unmatched.empty()) {
        uint64_t posted = channel_.posted();
        if (mistake_ == Mistake::kReadsNumbersBeyond) posted = seen + 1;
        for (; seen < posted; ++seen) unmatched.push_back(channel_.EntryOf(seen));
        if (unmatched.empty()) interleavings::AwaitWrite();
      }
      const uint16_t entry = unmatched.back();
      unmatched.pop_back();
      const int post = channel_.PostIn(entry);
      if (post < 1 || post > sends) Fail("no post");
      if (mistake_ == Mistake::kAnswersFirst) Answer(entry, post);
      if (memory_[post - 1].Get() != post) Fail("another message");
      if (mistake_ != Mistake::kAnswersFirst) Answer(entry, post);
      if (mistake_ == Mistake::kReadsTheEntryLater && channel_.PostIn(entry) != post)
        Fail("another");
    }
  }

 private:
  void Answer(uint16_t entry, int post) {
    channel_.AnswerPost(entry, post % 2 == 0 ? Channel::kReceived : Channel::kDifferent, 10 + post);
  }
  void AwaitAnswer(int i, int entry) {
    uint32_t answer = Channel::kPending;
    while ((answer = channel_.AnswerIn(static_cast<uint16_t>(entry))) == Channel::kPending) {
      interleavings::AwaitWrite();
    }
    if (answer == Channel::kDifferent && channel_.ReplyIn(static_cast<uint16_t>(entry)) != 11 + i) {
      Fail("another's reply");
    }
    memory_[i].Set(-1);  // it is the user's again
  }

  const Mistake mistake_;
  Channel channel_;
  Plain<int> memory_[kMostSends];
};

template <typename Sync = ModelSync>
Outcome MessagesAreSent(int sends, Mistake mistake = Mistake::kNone) {
  return Explore(
      [=] {
        auto pair = std::make_shared<Pair<Sync>>(mistake);
        Program program;
        program.threads.push_back([=] { pair->Send(sends); });
        program.threads.push_back([=] { pair->Receive(sends); });
        return program;
      },
      /*most_preemptions=*/4);
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

TEST(ChannelModelTest, EveryPostIsReadWholeAndAnsweredBeforeItsEntryIsUsedAgain) {
  ExpectRight(MessagesAreSent(2));
  ExpectRight(MessagesAreSent(3));
}
TEST(ChannelModelTest, APostBeforeItsMessageIsFound) {
  ExpectWrong(MessagesAreSent(1, Mistake::kPostsFirst), "data race");
}
TEST(ChannelModelTest, AnEntryThatIsUsedAgainTooEarlyIsFound) {
  EXPECT_NE(MessagesAreSent(3, Mistake::kUsesAnEntryTooEarly).error, "");
}
TEST(ChannelModelTest, MemoryThatIsTakenBackTooEarlyIsFound) {
  EXPECT_NE(MessagesAreSent(1, Mistake::kTakesMemoryBack).error, "");
}
TEST(ChannelModelTest, AnAnswerBeforeTheMessageIsReadIsFound) {
  ExpectWrong(MessagesAreSent(1, Mistake::kAnswersFirst), "data race");
}
TEST(ChannelModelTest, APostThatIsReadAfterItsAnswerIsFound) {
  ExpectWrong(MessagesAreSent(3, Mistake::kReadsTheEntryLater), "data race");
}
TEST(ChannelModelTest, ANumberOfAPostThatHasNotComeIsFound) {
  EXPECT_NE(MessagesAreSent(1, Mistake::kReadsNumbersBeyond).error, "");
}
TEST(ChannelModelTest, APostOrAnAnswerWithoutReleaseIsFound) {
  ExpectWrong(MessagesAreSent<RelaxedStores<uint64_t>>(1), "data race");
  ExpectWrong(MessagesAreSent<RelaxedStores<uint32_t>>(1), "data race");
}

}  // namespace
}  // namespace pelton::shm
