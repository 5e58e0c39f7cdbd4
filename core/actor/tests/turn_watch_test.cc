#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/actor/context.h"
#include "core/actor/executor_base.h"
#include "core/actor/executor_fixture.h"
#include "core/actor/monitor.h"
#include "core/actor/spawn.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Block {};
// Stays in its turn until it is let go.
class Blocker : public Actor {
 public:
  Blocker(std::atomic<bool>* is_in_turn, std::atomic<bool>* may_go)
      : is_in_turn_(*is_in_turn), may_go_(*may_go) {}
  void Handle(Block) {
    is_in_turn_ = true;
    while (!may_go_) std::this_thread::yield();
  }

 private:
  std::atomic<bool>& is_in_turn_;
  std::atomic<bool>& may_go_;
};

LivingActor Find(ActorId id) {
  for (LivingActor& actor : LivingActors()) {
    if (actor.id == id) return actor;
  }
  ADD_FAILURE() << "not listed";
  return {};
}

TEST(LivingActorsTest, ShowsMailboxesAndTurnsOfAllExecutors) {
  std::atomic<bool> is_in_turn{false};
  std::atomic<bool> may_go{false};
  ThreadExecutor thread;
  PoolExecutor pool(1);
  const auto busy =
      Spawn<Blocker>(thread, {.name = "busy", .mailbox_capacity = 8}, &is_in_turn, &may_go);
  const auto idle = Spawn<Blocker>(pool, {}, &is_in_turn, &may_go);
  ASSERT_TRUE(busy.Send(Block{}).ok());
  while (!is_in_turn) std::this_thread::yield();
  ASSERT_TRUE(busy.Send(Block{}).ok());
  const LivingActor seen = Find(busy.id());
  EXPECT_TRUE(seen.is_in_turn);
  EXPECT_EQ(seen.mailbox_used, 2) << "one that is being handled and one that waits";
  EXPECT_EQ(seen.mailbox_capacity, 8);
  EXPECT_TRUE(absl::StrContains(seen.what, "Blocker")) << seen.what;
  EXPECT_EQ(seen.name, "busy");
  EXPECT_EQ(Find(idle.id()).mailbox_used, 0);
  EXPECT_EQ(Find(idle.id()).name, "");
  may_go = true;
  EXPECT_TRUE(StopAndWait(busy, Soon()).ok());
  // Who waits hears of the stop before the executor lets go of the actor.
  const auto is_listed = [&busy] {
    const std::vector<LivingActor> left = LivingActors();
    return std::any_of(left.begin(), left.end(),
                       [&](const LivingActor& actor) { return actor.id == busy.id(); });
  };
  const absl::Time until = Soon();
  while (is_listed() && absl::Now() < until) std::this_thread::yield();
  EXPECT_FALSE(is_listed());
}

TEST(TurnWatchTest, TellsOnceOfEachTurnThatTakesTooLong) {
  TurnWatch watch(absl::Seconds(10));
  const absl::Time start = absl::UnixEpoch();
  LivingActor actor{ActorId(3), "model 'net'", "actor 3 (Blocker)", 5,
                    8,          /*turns=*/7,   /*is_in_turn=*/true, {}};
  EXPECT_TRUE(watch.Look({actor}, start).empty());
  EXPECT_TRUE(watch.Look({actor}, start + absl::Seconds(9)).empty());
  const auto lines = watch.Look({actor}, start + absl::Seconds(12));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0],
      "model 'net', actor 3 (Blocker) has been in one turn for more than 12s; 5 messages wait "
      "for it");
  EXPECT_TRUE(watch.Look({actor}, start + absl::Seconds(30)).empty()) << "told already";
  actor.turns = 8;
  EXPECT_TRUE(watch.Look({actor}, start + absl::Seconds(60)).empty()) << "another turn";
  actor.is_in_turn = false;
  EXPECT_TRUE(watch.Look({actor}, start + absl::Seconds(90)).empty());
}

}  // namespace
}  // namespace pelton
