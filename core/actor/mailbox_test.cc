#include "core/actor/mailbox.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace pelton::internal {
namespace {

constexpr MessageKind kUser{nullptr, &FreeMessage<int>, MessageClass::kUser};
constexpr MessageKind kSystem{nullptr, &FreeMessage<int>, MessageClass::kSystem};

MessageNode* Node(int value, const MessageKind& kind = kUser) {
  return NewMessage<int>(&kind, value);
}

std::vector<int> TakeAll(MessageList& list) {
  std::vector<int> values;
  while (MessageNode* node = list.Pop()) values.push_back(TakePayload<int>(node));
  return values;
}

TEST(MailboxTest, KeepsTheOrderWithinEachLane) {
  Mailbox mailbox(10);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(mailbox.Push(Node(i)), PushResult::kQueued);
    EXPECT_EQ(mailbox.Push(Node(10 + i, kSystem)), PushResult::kQueued);
  }
  MessageList system;
  MessageList user;
  EXPECT_TRUE(mailbox.Drain(system, user));
  EXPECT_TRUE(mailbox.Push(Node(3)) == PushResult::kQueued);
  EXPECT_TRUE(mailbox.Drain(system, user));
  EXPECT_FALSE(mailbox.Drain(system, user));
  EXPECT_EQ(TakeAll(user), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(TakeAll(system), (std::vector<int>{10, 11, 12}));
}

TEST(MailboxTest, OnlyTheFirstPushToAnIdleActorSchedulesIt) {
  Mailbox mailbox(10);
  EXPECT_FALSE(mailbox.TryAcquire()) << "it is born held";
  EXPECT_TRUE(mailbox.TryRelease());
  EXPECT_EQ(mailbox.Push(Node(1)), PushResult::kWake);
  EXPECT_EQ(mailbox.Push(Node(2)), PushResult::kQueued);
  EXPECT_FALSE(mailbox.TryAcquire());
  EXPECT_FALSE(mailbox.TryRelease()) << "messages are waiting";
  MessageList system;
  MessageList user;
  mailbox.Drain(system, user);
  user.DiscardAll();
  EXPECT_TRUE(mailbox.TryRelease());
  EXPECT_TRUE(mailbox.TryAcquire());
}

TEST(MailboxTest, ClosedRefusesNodesAndHandsOverTheLastOnes) {
  Mailbox mailbox(10);
  mailbox.Push(Node(1));
  MessageList system;
  MessageList user;
  mailbox.Close(system, user);
  EXPECT_EQ(TakeAll(user), (std::vector<int>{1}));
  EXPECT_TRUE(mailbox.closed());
  MessageNode* refused = Node(2);
  EXPECT_EQ(mailbox.Push(refused), PushResult::kClosed);
  FreeMessage<int>(refused);
}

TEST(MailboxTest, RoomIsReservedAllOrNone) {
  Mailbox mailbox(4);
  EXPECT_TRUE(mailbox.TryReserve(3));
  EXPECT_FALSE(mailbox.TryReserve(2));
  EXPECT_TRUE(mailbox.TryReserve(1));
  mailbox.ReturnRoom(4);
  EXPECT_TRUE(mailbox.TryReserve(4));
  mailbox.RefuseReservations();
  mailbox.RefuseReservations();
  EXPECT_TRUE(mailbox.refusing());
  EXPECT_FALSE(mailbox.AllRoomReturned());
  mailbox.ReturnRoom(4);
  EXPECT_TRUE(mailbox.AllRoomReturned());
  EXPECT_FALSE(mailbox.TryReserve(1));
}

// Producers and a consumer that gives up the turn whenever it finds nothing: nothing is lost, and
// nobody but the holder ever runs.
TEST(MailboxTest, ManyProducersLoseNothingAndWakeOnce) {
  constexpr int kProducers = 3;
  constexpr int kEach = 20'000;
  Mailbox mailbox(100);
  ASSERT_TRUE(mailbox.TryRelease());
  std::atomic<bool> scheduled{false};
  std::vector<std::thread> producers;
  for (int producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&, producer] {
      for (int i = 0; i < kEach; ++i) {
        while (!mailbox.TryReserve(1)) std::this_thread::yield();
        if (mailbox.Push(Node(producer * kEach + i)) != PushResult::kWake) continue;
        EXPECT_FALSE(scheduled.exchange(true)) << "scheduled twice";
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  MessageList system;
  MessageList user;
  for (int handled = 0; handled < kProducers * kEach;) {
    if (!scheduled.exchange(false)) {
      std::this_thread::yield();
      continue;
    }
    do {
      mailbox.Drain(system, user);
      for (int value : TakeAll(user)) {
        EXPECT_EQ(value % kEach, next[static_cast<size_t>(value / kEach)]++);
        mailbox.ReturnRoom(1);
        ++handled;
      }
    } while (!mailbox.TryRelease());
  }
  for (std::thread& producer : producers) producer.join();
}

}  // namespace
}  // namespace pelton::internal
