// In steady state no message, answer or timer allocates.
#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/base/config.h"
#include "core/actor/context.h"
#include "core/actor/pool_executor.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int64_t> allocations{0};

void* Counted(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* block =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(bytes)
          : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (block == nullptr) std::abort();
  return block;
}

}  // namespace

void* operator new(std::size_t bytes) { return Counted(bytes, 1); }
void* operator new[](std::size_t bytes) { return Counted(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

namespace pelton {
namespace {

struct Question {
  Promise<int> reply;
};
struct Ball {
  int left;
  Promise<void> done;
};
struct Tick {
  Promise<void> done;
};

// Uses every way a message can take: ref, answer in a turn, timer.
class Player : public Actor {
 public:
  explicit Player(ActorRef<Player> other) : other_(std::move(other)) {}
  void Handle(Question question) { question.reply.Set(1); }
  absl::Status Handle(Ball ball) {
    if (ball.left == 0) {
      context().SendAfter(*this, absl::ZeroDuration(), Tick{std::move(ball.done)});
      return absl::OkStatus();
    }
    context().Then(other_.Ask(Question{}, context().Now() + absl::Minutes(1)),
                   [this, ball = std::move(ball)](absl::StatusOr<int>) mutable {
                     ball.left -= 1;
                     EXPECT_TRUE(context().RefTo(*this).Send(std::move(ball)).ok());
                   });
    return absl::OkStatus();
  }
  void Handle(Tick tick) { tick.done.Set(absl::OkStatus()); }

 private:
  ActorRef<Player> other_;
};

void Play(const ActorRef<Player>& player, int turns) {
  auto [promise, done] = MakePromise<void>();
  ASSERT_TRUE(player.Send(Ball{turns, std::move(promise)}).ok());
  ASSERT_TRUE(std::move(done).Await(absl::Now() + absl::Seconds(60)).ok());
}

TEST(AllocationTest, MessagesAnswersAndTimersDoNotAllocateInSteadyState) {
  PoolExecutor pool(1);
  ThreadExecutor thread;
  const auto other = Spawn<Player>(thread, {}, ActorRef<Player>());
  const auto player = Spawn<Player>(pool, {}, other);
  Play(player, 1000);
  const int64_t before = allocations.load();
  Play(player, 1000);
  // A magazine may still move for the first time; per message there is nothing.
  EXPECT_LE(allocations.load() - before, 4);
}

}  // namespace
}  // namespace pelton
