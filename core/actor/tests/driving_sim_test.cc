// An executor's own thread, threads that wait by doing an actor's work, and one that only sends:
// code of the product, switched by a seed before each atomic access. None of it takes time in the
// simulation, so that a message which is slept through shows by the time that has passed.
#include <utility>
#include <vector>

#include "core/actor/actor.h"
#include "core/actor/backoff.h"
#include "core/actor/borrow.h"
#include "core/actor/promise.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/sim_threads.h"
#include "core/actor/spawn.h"
#include "core/actor/thread_executor.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

struct Work {
  int polls;
  Promise<void> reply;
};

// Takes some polls for each piece of work, and now and then one that comes to nothing, but never as
// many in a row as let its thread park.
class PolledActor final : public PollingActor {
 public:
  explicit PolledActor(SimExecutor* sim) : sim_(*sim) {}
  void Handle(Work work) {
    polls_left_ += work.polls;
    owed_.push_back(std::move(work.reply));
  }
  PollResult Poll() override {
    if (owed_.empty()) return PollResult::kNothingToDo;
    if (idle_ < 2 && sim_.Uniform(4) == 0) {
      ++idle_;
      return PollResult::kIdle;
    }
    idle_ = 0;
    if (--polls_left_ > 0) return PollResult::kMoved;
    for (Promise<void>& reply : std::exchange(owed_, {})) reply.Set(absl::OkStatus());
    return sim_.Uniform(2) == 0 ? PollResult::kMoved : PollResult::kNothingToDo;
  }

 private:
  SimExecutor& sim_;
  int polls_left_ = 0;
  int idle_ = 0;
  std::vector<Promise<void>> owed_;
};

// Threads: the test's, which runs those of the simulation. Owns: all of it.
class World {
 public:
  explicit World(uint64_t seed) : sim_(seed), threads_(sim_) {}

  void Run() {
    const absl::Time begin = sim_.Now();
    threads_.Start(process_, [this] {
      ThreadExecutor executor;
      const auto actor = Spawn<PolledActor>(executor, {}, &sim_);
      int running = 3;
      for (int user = 0; user < 3; ++user) {
        threads_.Run([this, &actor, &running, user] {
          for (int i = 0; i < 4; ++i) user == 0 ? Send(actor) : Drive(actor);
          --running;
        });
      }
      threads_.WaitUntil([&] { return running == 0; }, absl::InfiniteFuture());
    });
    EXPECT_TRUE(threads_.RunUntilAllEnd()) << "a thread waits for what does not come";
    EXPECT_EQ(sim_.Now(), begin) << "a message was slept through";
  }

 private:
  Work Some() { return {static_cast<int>(sim_.Uniform(4)), {}}; }
  absl::Time Soon() { return sim_.Now() + absl::Minutes(1); }
  void Send(const ActorRef<PolledActor>& actor) {
    EXPECT_TRUE(actor.Ask(Some(), Soon()).Await(Soon()).ok());
  }
  void Drive(const ActorRef<PolledActor>& actor) {
    EXPECT_TRUE(AwaitDriving(actor.Ask(Some(), Soon()), actor, Soon()).ok());
  }

  SimThreads::Process process_;
  SimExecutor sim_;
  SimThreads threads_;
};

TEST(DrivingSimTest, NobodySleepsThroughAMessage) {
  // How many spins a wait has depends on the machine's cores, unless there are none.
  SetProcessesOnHost(1'000);
  ForEachSeed(2'000, [](uint64_t seed) { World(seed).Run(); });
}

}  // namespace
}  // namespace pelton
