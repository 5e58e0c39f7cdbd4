#include "comm/control/order_inbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

Order MakeOrder(int number) {
  return {Order::Kind::kAbort, Rank(number), absl::InternalError(absl::StrCat(number))};
}

TEST(OrderInboxTest, KeepsOrdersForTheCallbackToCome) {
  OrderInbox inbox;
  for (int i = 0; i < 3; ++i) inbox.Push(MakeOrder(i));
  inbox.Deliver();
  std::vector<int> got;
  inbox.SetCallback([&](const Order& order) { got.push_back(order.culprit->value()); });
  EXPECT_EQ(got, (std::vector<int>{0, 1, 2}));
}

TEST(OrderInboxTest, DeliversNothingAfterClose) {
  OrderInbox inbox;
  int count = 0;
  inbox.SetCallback([&](const Order&) { ++count; });
  inbox.Close();
  inbox.Push(MakeOrder(0));
  inbox.Deliver();
  EXPECT_EQ(count, 0);
}

TEST(OrderInboxTest, DeliversOneAtATimeAndAllFromManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kOrders = 500;
  OrderInbox inbox;
  int count = 0;  // unguarded: deliveries do not overlap
  inbox.SetCallback([&](const Order&) { ++count; });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kOrders; ++i) {
        inbox.Push(MakeOrder(i));
        inbox.Deliver();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  inbox.SetCallback(nullptr);
  EXPECT_EQ(count, kThreads * kOrders);
}

}  // namespace
}  // namespace pelton
