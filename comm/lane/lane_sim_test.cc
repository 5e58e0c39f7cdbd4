// Threads at one lane in every order that a seed gives, in virtual time: each waits for jobs,
// borrows the lane, gives up, or aborts. Whenever all of them sleep, nothing may be left that one
// of them should do, so a lost wake-up fails at once, although sleeps end after some time.
#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/lane/lane.h"
#include "core/actor/context.h"
#include "core/actor/executor.h"
#include "core/actor/sim_executor.h"
#include "core/actor/sim_test.h"
#include "core/actor/spawn.h"
#include "core/base/check.h"
#include "core/base/moving_deadline.h"
#include "core/base/status.h"
#include "gtest/gtest.h"

namespace pelton::lane {
namespace {

// A wire on which operations end at given times, or never. Whoever parks on it is the test's.
class FakeWire final : public Communicator, public EventSource {
 public:
  explicit FakeWire(SimExecutor& sim) : sim_(sim) { sim_.AddEventSource(this); }
  ~FakeWire() override { sim_.RemoveEventSource(this); }

  Rank rank() const override { return Rank(0); }
  WorldSize world_size() const override { return WorldSize(2); }
  CommunicatorId id() const override { return CommunicatorId(3); }
  int spins() const override { return 0; }
  absl::Status Register(const Region&) override { return absl::OkStatus(); }
  void Deregister(RegionId) override {}
  std::vector<Rank> Missing() const override { return {Rank(1)}; }

  absl::StatusOr<Completion> Launch(const Operation&, Stream&) override {
    PELTON_CHECK(false) << "jobs call Begin";
    return Completion();
  }
  absl::StatusOr<Completion> Begin(absl::Duration takes) {
    RETURN_IF_ERROR(reason_);
    running_.insert(++launched_);
    if (takes != absl::InfiniteDuration()) due_.emplace(sim_.Now() + takes, launched_);
    return Completion{launched_};
  }
  bool Progress() override {
    if (!reason_.ok()) arrived_ = running_;
    for (const uint64_t ticket : arrived_) running_.erase(ticket);
    return !std::exchange(arrived_, {}).empty();
  }
  State Query(Completion completion) override {
    if (running_.contains(completion.ticket)) return {};
    return {true, reason_};
  }
  void Abort(const absl::Status& reason) override {
    if (reason_.ok()) reason_ = reason;
    Ring();
  }
  void Park(absl::Time) override { PELTON_CHECK(false) << "the test parks"; }
  void Wake() override { Ring(); }

  absl::Time NextEventTime() override {
    return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
  }
  void RunDue(absl::Time now) override {
    for (; !due_.empty() && due_.begin()->first <= now; due_.erase(due_.begin())) {
      if (running_.contains(due_.begin()->second)) arrived_.insert(due_.begin()->second);
    }
    Ring();
  }

  // Parks `wake`, which is called at most once; false: a ring that came before has ended the park.
  bool ParkHere(std::function<void()> wake) {
    if (std::exchange(rung_, false)) return false;
    parked_ = std::move(wake);
    return true;
  }
  void EndPark() { parked_ = nullptr; }
  bool IsRunning() const { return !running_.empty(); }
  bool HasNews() const { return !arrived_.empty() || (!reason_.ok() && !running_.empty()); }

 private:
  void Ring() {
    if (parked_ == nullptr) {
      rung_ = true;
    } else {
      std::exchange(parked_, nullptr)();
    }
  }

  SimExecutor& sim_;
  uint64_t launched_ = 0;
  std::set<uint64_t> running_, arrived_;
  std::multimap<absl::Time, uint64_t> due_;
  absl::Status reason_;
  bool rung_ = false;
  std::function<void()> parked_;
};

class SimVisit final : public Visit {
 public:
  SimVisit(Lane& lane, Aim aim, absl::Time deadline, JobHandle job, std::function<void()> kick)
      : Visit(lane, aim, deadline, std::move(job)), kick_(std::move(kick)) {}

 private:
  void Kick() override { kick_(); }
  const std::function<void()> kick_;
};

// What the test looks at while all sleep.
struct Record {
  bool is_asleep = false;
  bool is_parked = false;  // on the wire
  bool has_ended = false;
  bool holds = false;  // it has borrowed the lane
  bool attends = false;
  bool is_calling = false;  // a finish or a callback that lasts
  JobHandle job;
  std::unique_ptr<SimVisit> visit;
};

struct World {
  explicit World(uint64_t seed) : sim(seed), wire(std::make_shared<FakeWire>(sim)) {}

  SimExecutor sim;
  std::shared_ptr<FakeWire> wire;
  std::shared_ptr<Lane> lane;
  std::deque<Record> records;
  int given = 0, launched = 0, ended = 0;  // jobs
  int asked = 0, called = 0;               // callbacks
  std::vector<JobHandle> jobs;
  std::vector<uint64_t> finished;  // collectives that ended well, by their numbers

  bool Chance(uint64_t one_in) { return sim.Uniform(one_in) == 0; }
  absl::Duration UpTo(absl::Duration most) {
    return absl::Nanoseconds(sim.Uniform(absl::ToInt64Nanoseconds(most)) + 1);
  }
  JobHandle Give();
};

JobHandle World::Give() {
  Job job;
  job.name = "job";
  job.queue = Chance(3) ? Job::Queue::kReceives : Job::Queue::kCollectives;
  const bool is_endless = Chance(30);
  if (is_endless || Chance(40)) job.deadline = sim.Now() + UpTo(absl::Milliseconds(3));
  const absl::Duration takes = is_endless ? absl::InfiniteDuration() : UpTo(absl::Milliseconds(1));
  job.launches.emplace_back([this, takes](Communicator&) {
    ++launched;
    return wire->Begin(takes);
  });
  const bool is_collective = job.queue == Job::Queue::kCollectives;
  job.finish_lasts = Chance(3);
  job.finish = [this, is_collective, number = given] {
    if (is_collective) finished.push_back(static_cast<uint64_t>(number));
  };
  job.ended = [this] { ++ended; };
  ++given;
  jobs.push_back(lane->Enqueue(std::move(job)));
  return jobs.back();
}

// A thread that sleeps and wakes as the visit says, where other threads run between any two steps.
class SimThread : public Actor {
 public:
  struct Go {
    uint64_t number;  // of the sleep that it ends; 0: of none
  };

  explicit SimThread(World& world) : world_(world), record_(world.records.emplace_back()) {}
  absl::Status OnStart() override {
    self_ = context().RefTo(*this);
    GoOn();
    return absl::OkStatus();
  }
  void Handle(Go go) {
    if (go.number != 0 && go.number != sleep_) return;
    if (record_.is_asleep) WakeUp();
    if (is_about_to_sleep_) return FallAsleep();
    if (std::exchange(record_.is_calling, false)) {
      record_.visit->Call();
      return GoOn();
    }
    if (record_.visit == nullptr) return Act();
    if (record_.holds) return OnEnd();
    Step();
  }

 protected:
  virtual void Act() = 0;
  virtual void OnEnd() = 0;

  void Begin(Visit::Aim aim, absl::Time deadline, JobHandle job = nullptr) {
    record_.job = job;
    record_.visit = std::make_unique<SimVisit>(*world_.lane, aim, deadline, std::move(job), [this] {
      is_kicked_ = true;
      if (record_.is_asleep && !record_.is_parked) Rouse();
    });
    GoOn();
  }
  void GoOn() { PELTON_CHECK_OK(self_.Send(Go{0})); }
  void End() {
    record_.has_ended = true;
    context().Stop();
  }
  void SleepFor(absl::Duration duration) {
    record_.is_asleep = true;
    timer_ = context().SendAfter(*this, duration, Go{++sleep_});
  }

  World& world_;
  Record& record_;

 private:
  void Step() {
    Visit::Next next = record_.visit->Step();
    // An order that differs in the number of yields only tells nothing new.
    while (next == Visit::Next::kYield && !world_.Chance(64)) next = record_.visit->Step();
    is_about_to_sleep_ = next == Visit::Next::kPark || next == Visit::Next::kStandBy;
    record_.is_parked = next == Visit::Next::kPark;
    if (next == Visit::Next::kEnd) return OnEnd();
    if (next == Visit::Next::kCall) {
      record_.is_calling = true;
      record_.is_parked = false;
      if (world_.Chance(2)) return SleepFor(world_.UpTo(absl::Milliseconds(1)));
    }
    GoOn();
  }
  void FallAsleep() {
    is_about_to_sleep_ = false;
    const bool sleeps = record_.is_parked ? world_.wire->ParkHere([this] { Rouse(); })
                                          : !std::exchange(is_kicked_, false);
    if (!sleeps) return GoOn();
    SleepFor(record_.visit->until() - context().Now());
  }
  // It is awake for the test from now on, whenever its turn comes.
  void Rouse() {
    WakeUp();
    timer_.Cancel();
    GoOn();
  }
  void WakeUp() {
    record_.is_asleep = false;
    ++sleep_;
    if (record_.is_parked) {
      world_.wire->EndPark();
    } else {
      is_kicked_ = false;
    }
  }

  ActorRef<SimThread> self_;
  Timer timer_;
  uint64_t sleep_ = 0;
  bool is_about_to_sleep_ = false;
  bool is_kicked_ = false;
};

class Attendant final : public SimThread {
 public:
  explicit Attendant(World& world) : SimThread(world) { record_.attends = true; }

 private:
  void Act() override { Begin(Visit::Aim::kAttend, absl::InfiniteFuture()); }
  void OnEnd() override {
    record_.visit.reset();
    End();
  }
};

class Caller final : public SimThread {
 public:
  explicit Caller(World& world) : SimThread(world) {}

 private:
  static constexpr int kActs = 6;

  void Act() override {
    if (acts_++ == kActs) return End();
    if (world_.Chance(60)) world_.lane->Abort(absl::AbortedError("planted"));
    switch (world_.sim.Uniform(4)) {
      case 0:
        return Begin(Visit::Aim::kJob, absl::InfiniteFuture(), world_.Give());
      case 1:
        return Begin(Visit::Aim::kJob, context().Now() + world_.UpTo(absl::Milliseconds(1)),
                     world_.Give());
      case 2:
        return Begin(Visit::Aim::kIdle, context().Now() + world_.UpTo(absl::Milliseconds(3)));
      default:
        ++world_.asked;
        world_.lane->OnDone(world_.Give(), [&world = world_](const absl::Status&) {
          ++world.called;
          if (world.Chance(2)) world.Give();
        });
        return GoOn();
    }
  }
  void OnEnd() override {
    if (record_.visit->drives() && !record_.holds) {
      record_.holds = true;
      return SleepFor(world_.UpTo(absl::Milliseconds(1)));
    }
    record_.holds = false;
    record_.visit.reset();
    record_.job = nullptr;
    GoOn();
  }

  int acts_ = 0;
};

// While all threads sleep or have ended.
void CheckThatNothingIsLeft(World& world) {
  const Record* driver = nullptr;
  bool is_anybody_waiting = false;
  for (const Record& record : world.records) {
    if (record.visit == nullptr || record.is_calling) continue;
    if (record.visit->drives()) {
      ASSERT_EQ(driver, nullptr) << "two drive";
      driver = &record;
    } else if (!record.attends) {
      is_anybody_waiting = true;
      ASSERT_FALSE(record.job != nullptr && record.job->done()) << "sleeps beyond its job's end";
    }
  }
  const bool is_anybody_calling =
      std::any_of(world.records.begin(), world.records.end(),
                  [](const Record& record) { return record.is_calling; });
  const bool is_wire_busy = world.launched != world.given || world.wire->IsRunning();
  // A job that is called for is nobody's to drive.
  const bool is_work_left = is_anybody_calling
                                ? is_wire_busy
                                : std::any_of(world.jobs.begin(), world.jobs.end(),
                                              [](const JobHandle& job) { return !job->done(); });
  if (driver == nullptr) {
    ASSERT_FALSE(is_work_left || is_anybody_waiting) << "nobody drives";
    return;
  }
  if (driver->holds) return;
  ASSERT_TRUE(is_wire_busy || is_anybody_calling || !is_work_left)
      << "parked, and a job that is finished has not ended";
  ASSERT_FALSE(world.wire->HasNews()) << "parked, and operations have ended";
  ASSERT_EQ(world.launched, world.given) << "parked, and jobs have not begun";
  ASSERT_FALSE(driver->attends && is_anybody_waiting) << "an attendant keeps the lane";
}

bool AreAllAsleep(const World& world) {
  return std::all_of(world.records.begin(), world.records.end(),
                     [](const Record& record) { return record.is_asleep || record.has_ended; });
}

bool HasEverythingEnded(const World& world) {
  const bool are_callers_gone =
      std::all_of(world.records.begin(), world.records.end(),
                  [](const Record& record) { return record.attends || record.has_ended; });
  return are_callers_gone && world.ended == world.given && world.called == world.asked;
}

void RunWorld(uint64_t seed, int callers) {
  World world(seed);
  world.lane = Lane::Create(world.wire, [&](Lane&) { Spawn<Attendant>(world.sim, {}, world); });
  for (int i = 0; i < callers; ++i) Spawn<Caller>(world.sim, {}, world);
  const absl::Time limit = world.sim.Now() + absl::Minutes(1);
  while (!HasEverythingEnded(world) && !testing::Test::HasFatalFailure()) {
    if (AreAllAsleep(world)) CheckThatNothingIsLeft(world);
    ASSERT_TRUE(world.sim.Step(limit)) << "nothing happens any more";
  }
  world.lane->Stop();
  world.sim.RunUntilIdle();
  for (const Record& record : world.records) EXPECT_TRUE(record.has_ended);
  for (const JobHandle& job : world.jobs) EXPECT_TRUE(job->done());
  EXPECT_TRUE(std::is_sorted(world.finished.begin(), world.finished.end()));
}

TEST(LaneSimTest, OneThreadAndTheAttendant) {
  ForEachSeed(500, [](uint64_t seed) { RunWorld(seed, 1); });
}

TEST(LaneSimTest, ThreadsThatWaitBorrowGiveUpAndAbort) {
  ForEachSeed(1500, [](uint64_t seed) { RunWorld(seed, 2 + static_cast<int>(seed % 3)); });
}

// A job that is due at 3 ms ends on the wire after 1 ms, and its finish after 7 ms, while another
// thread drives.
TEST(LaneSimTest, AJobAtItsFinishHasMadeItsDeadline) {
  World world(1);
  world.lane = Lane::Create(world.wire, [](Lane&) {});
  Job job;
  job.deadline = world.sim.Now() + absl::Milliseconds(3);
  job.launches.emplace_back(
      [&](Communicator&) { return world.wire->Begin(absl::Milliseconds(1)); });
  job.finish_lasts = true;
  job.finish = [] {};
  const JobHandle given = world.lane->Enqueue(std::move(job));
  const auto step_to = [](Visit& visit, Visit::Next awaited) {
    for (int i = 0; i < 1000; ++i) {
      if (visit.Step() == awaited) return true;
    }
    return false;
  };
  SimVisit finishes(*world.lane, Visit::Aim::kJob, absl::InfiniteFuture(), given, [] {});
  ASSERT_TRUE(step_to(finishes, Visit::Next::kPark));
  world.sim.RunFor(absl::Milliseconds(2));
  ASSERT_TRUE(step_to(finishes, Visit::Next::kCall));
  world.sim.RunFor(absl::Milliseconds(5));
  {
    SimVisit drives(*world.lane, Visit::Aim::kIdle, absl::InfiniteFuture(), nullptr, [] {});
    ASSERT_TRUE(step_to(drives, Visit::Next::kPark)) << "the job has not ended";
    finishes.Call();
    ASSERT_TRUE(step_to(drives, Visit::Next::kEnd));
  }
  ASSERT_TRUE(step_to(finishes, Visit::Next::kEnd));
  EXPECT_EQ(given->status(), absl::OkStatus());
  EXPECT_EQ(world.wire->Begin(absl::ZeroDuration()).status(), absl::OkStatus()) << "aborted";
  world.lane->Stop();
}

// A job that is due at 3 ms, and deadlines that stand still from 1 ms to 11 ms.
void ExpectDeadlinesStandStill(bool has_more) {
  World world(1);
  Standstill standstill;
  world.lane = Lane::Create(
      world.wire, [&](Lane&) { Spawn<Attendant>(world.sim, {}, world); }, &standstill);
  const absl::Time begin = world.sim.Now();
  const auto run_until = [&](absl::Duration since) {
    while (world.sim.Now() < begin + since && world.sim.Step(begin + since)) continue;
  };
  const auto give = [&](absl::Duration timeout) {
    Job job;
    job.name = "job";
    job.deadline = world.sim.Now() + timeout;
    job.timeout = timeout;
    job.launches.emplace_back(
        [&world](Communicator&) { return world.wire->Begin(absl::InfiniteDuration()); });
    if (has_more) job.more = [] { return std::vector<Job::Launch>(); };
    return world.lane->Enqueue(std::move(job));
  };
  const JobHandle waits = give(absl::Milliseconds(3));
  run_until(absl::Milliseconds(1));
  standstill.Begin(begin + absl::Milliseconds(1));
  run_until(absl::Milliseconds(6));
  // Its own standstill is shorter.
  const JobHandle later = give(absl::Milliseconds(30));
  run_until(absl::Milliseconds(11));
  standstill.End(begin + absl::Milliseconds(11));
  run_until(absl::Milliseconds(12));
  EXPECT_FALSE(waits->done());
  run_until(absl::Milliseconds(14));
  ASSERT_TRUE(waits->done());
  EXPECT_TRUE(absl::IsDeadlineExceeded(waits->status())) << waits->status();
  EXPECT_TRUE(later->done()) << "the first one ends the communicator";
  world.lane->Stop();
  world.sim.RunUntilIdle();
}

TEST(LaneSimTest, AJobsDeadlineStandsStillWhileARankIsAwaited) {
  ExpectDeadlinesStandStill(/*has_more=*/false);
}

// Which has begun, and keeps its place in the queue all the same.
TEST(LaneSimTest, TheDeadlineOfAJobThatLaunchesMoreStandsStillNoLonger) {
  ExpectDeadlinesStandStill(/*has_more=*/true);
}

}  // namespace
}  // namespace pelton::lane
