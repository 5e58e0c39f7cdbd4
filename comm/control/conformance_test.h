// What every implementation of Control must do. One test file per implementation includes this and
// instantiates the suite with a fixture of its own.
#ifndef PELTON_COMM_CONTROL_CONFORMANCE_TEST_H_
#define PELTON_COMM_CONTROL_CONFORMANCE_TEST_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "comm/control/control.h"
#include "core/base/sync.h"

namespace pelton {

// A coordinator and a way to make Controls that reach it.
// Threads: any. Owns: the coordinator.
class ControlFixture {
 public:
  virtual ~ControlFixture() = default;
  virtual std::unique_ptr<Control> MakeControl() = 0;
  // Returns when no rank is left at the coordinator, or `deadline` passed: an error.
  virtual absl::Status AwaitEmpty(absl::Time deadline) = 0;
};

using ControlFixtureFactory = std::unique_ptr<ControlFixture> (*)();

// Far away for what must succeed: reached only when a test fails.
inline absl::Time Late() { return absl::Now() + absl::Seconds(60); }

// Collects the orders that one Control receives.
// Threads: any. Owns: the orders.
class OrderLog {
 public:
  explicit OrderLog(Control* control) : control_(control) {
    control_->OnOrder([this](const Order& order) {
      MutexLock lock(&mutex_);
      orders_.push_back(order);
      came_.SignalAll();
    });
  }
  ~OrderLog() { control_->OnOrder(nullptr); }

  // The order of this place in the sequence; a kind of kCoordinatorLost with code kDeadlineExceeded
  // if it does not come.
  Order Await(size_t index) {
    const absl::Time deadline = Late();
    MutexLock lock(&mutex_);
    while (orders_.size() <= index) {
      if (came_.WaitWithDeadline(&mutex_, deadline)) {
        return {Order::Kind::kCoordinatorLost, std::nullopt,
                absl::DeadlineExceededError("no order came")};
      }
    }
    return orders_[index];
  }
  size_t size() {
    MutexLock lock(&mutex_);
    return orders_.size();
  }

 private:
  Control* const control_;
  Mutex mutex_;
  CondVar came_;
  std::vector<Order> orders_ ABSL_GUARDED_BY(mutex_);
};

// Runs `body` once per rank, each on a thread of its own.
inline void OnEveryRank(int world_size, absl::FunctionRef<void(int rank)> body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back([=] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

inline JoinRequest MakeJoin(int rank, int world_size, const std::string& job = "job") {
  return {.job = job,
          .rank = Rank(rank),
          .world_size = WorldSize(world_size),
          .host = {"boot", 7, 1000 + rank}};
}

using Controls = std::vector<std::unique_ptr<Control>>;

// Threads: the test's. Owns: the fixture.
class ControlConformanceTest : public testing::TestWithParam<ControlFixtureFactory> {
 protected:
  // A world whose ranks have all joined.
  Controls JoinedWorld(int world_size, const std::string& job = "job") {
    Controls controls = UnjoinedWorld(world_size);
    OnEveryRank(world_size, [&](int rank) {
      const auto membership = controls[rank]->Join(MakeJoin(rank, world_size, job), Late());
      EXPECT_TRUE(membership.ok()) << membership.status();
    });
    return controls;
  }
  Controls UnjoinedWorld(int count) {
    Controls controls;
    for (int i = 0; i < count; ++i) controls.push_back(fixture_->MakeControl());
    return controls;
  }
  // Each request on a Control of its own, at the same time.
  std::vector<absl::Status> JoinAll(const std::vector<JoinRequest>& requests,
                                    absl::Duration timeout = absl::Seconds(60)) {
    const int count = static_cast<int>(requests.size());
    const Controls controls = UnjoinedWorld(count);
    std::vector<absl::Status> statuses(count);
    OnEveryRank(count, [&](int i) {
      statuses[i] = controls[i]->Join(requests[i], absl::Now() + timeout).status();
    });
    return statuses;
  }

  std::unique_ptr<ControlFixture> fixture_ = GetParam()();
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_CONFORMANCE_TEST_H_
