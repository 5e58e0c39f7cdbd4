// All ranks of a world in one thread, with operations that end when a test says so.
#ifndef PELTON_CORE_PIPELINE_FAKE_WORLD_H_
#define PELTON_CORE_PIPELINE_FAKE_WORLD_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/pipeline/operation.h"

namespace pelton {

class FakeRunner;

// Matches the n-th collective of every rank, reduces in rank order and remembers who launched what.
// Knows allreduce of float32, float64, int32 and uint8, broadcast and barrier.
// Threads: one at a time. Owns: the runners.
class FakeWorld {
 public:
  explicit FakeWorld(int32_t world_size);
  ~FakeWorld();

  FakeRunner& runner(int32_t rank) { return *runners_[static_cast<size_t>(rank)]; }
  int32_t world_size() const { return static_cast<int32_t>(runners_.size()); }

  // While held, operations that everyone has launched do not end.
  void Hold(bool held) { held_ = held; }
  // From now on `rank` is dead: the others are told so when they progress.
  void Kill(int32_t rank);

 private:
  friend class FakeRunner;

  bool TryFinish(size_t index);
  void Execute(const std::vector<Operation>& operations) const;

  std::vector<std::unique_ptr<FakeRunner>> runners_;
  bool held_ = false;
};

// Threads: as OperationRunner, but all of a world in one thread at a time. Owns: its launches.
class FakeRunner final : public OperationRunner {
 public:
  FakeRunner(FakeWorld& world, int32_t rank) : world_(world), rank_(rank) {}

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  bool Progress() override;
  State Query(Completion completion) override;
  void Park(absl::Time until) override {}
  void Wake() override { ++wakes_; }
  void Abort(const absl::Status& reason) override;
  std::vector<Rank> Missing() const override;

  // Everything launched, in order, whatever became of it.
  const std::deque<Operation>& launches() const { return launches_; }
  const absl::Status& aborted() const { return aborted_; }
  int wakes() const { return wakes_; }

 private:
  friend class FakeWorld;

  FakeWorld& world_;
  const int32_t rank_;
  std::deque<Operation> launches_;
  std::deque<State> states_;  // by launch
  size_t finished_ = 0;       // launches that are done
  absl::Status aborted_;
  std::atomic<int> wakes_ = 0;  // any thread may wake a runner
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_FAKE_WORLD_H_
