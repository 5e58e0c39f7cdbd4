// Windows of ranks that live in one process: for tests.
#ifndef PELTON_COMM_WINDOW_TEST_WINDOWS_H_
#define PELTON_COMM_WINDOW_TEST_WINDOWS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/window/create_window.h"
#include "comm/window/window.h"
#include "comm/window/window_source.h"
#include "core/base/clock.h"
#include "core/base/moving_deadline.h"
#include "core/base/sync.h"

namespace pelton {

// A source of windows for each rank of a world. Making waits for the other ranks, so that each
// makes its windows on a thread of its own. Threads: any. Owns: the sources.
class TestWindows {
 public:
  explicit TestWindows(int32_t world_size)
      : reaches_(static_cast<size_t>(world_size)), given_(static_cast<size_t>(world_size)) {
    for (size_t rank = 0; rank < given_.size(); ++rank) sources_.emplace_back(*this, rank);
  }

  WindowSource& source(int32_t rank) { return sources_[static_cast<size_t>(rank)]; }

  // Ends the communication of `rank`, with an error at both ends of each edge, when it is about to
  // reach another rank for this time from now on, from 1. Threads: while no rank is at its windows.
  void EndAtReach(int32_t rank, uint64_t number) {
    Reaches& reaches = reaches_[static_cast<size_t>(rank)];
    reaches.ends_at = reaches.count + number;
  }
  // How often `rank` has reached another one. Threads: as EndAtReach.
  uint64_t ReachCount(int32_t rank) const { return reaches_[static_cast<size_t>(rank)].count; }

 private:
  // Of one rank, which alone changes them, but for who has ended.
  struct Reaches {
    uint64_t count = 0;
    uint64_t ends_at = 0;  // 0: never
    std::atomic<bool> has_ended = false;
  };

  // Threads: one. Owns: nothing.
  class Source final : public WindowSource {
   public:
    Source(TestWindows& here, size_t rank) : here_(here), rank_(rank) {}
    absl::StatusOr<std::unique_ptr<Window>> Make(WindowOptions options) override {
      return here_.Make(rank_, std::move(options));
    }
    MovingDeadline deadline() const override { return Clock::Real().Now() + absl::Seconds(20); }

   private:
    TestWindows& here_;
    const size_t rank_;
  };

  absl::StatusOr<std::unique_ptr<Window>> Make(size_t rank, WindowOptions options) {
    const absl::Time deadline = sources_[rank].deadline().At(Clock::Real().Now());
    MutexLock lock(&mutex_);
    given_[rank] = std::move(options);
    if (++given_count_ == given_.size()) {
      MakeAll();
      changed_.SignalAll();
    }
    while (made_.size() <= rank || !made_[rank].has_value()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", rank, " makes a window and only ", given_count_, " ranks do so"));
      }
    }
    return *std::exchange(made_[rank], std::nullopt);
  }

  // Before each edge that `rank` reaches.
  absl::Status Check(Rank rank, Rank peer) {
    Reaches& mine = reaches_[static_cast<size_t>(rank.value())];
    if (++mine.count == mine.ends_at) mine.has_ended = true;
    for (const Rank end : {rank, peer}) {
      if (!reaches_[static_cast<size_t>(end.value())].has_ended) continue;
      return absl::UnavailableError(absl::StrCat("rank ", end.value(), " was ended for the test"));
    }
    return absl::OkStatus();
  }

  // The results stay until each rank has taken its own, before which none makes the next window.
  void MakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    HostsHere hosts;
    hosts.host_of.resize(given_.size());
    hosts.links.resize(given_.size());
    hosts.check = [this](Rank rank, Rank peer) { return Check(rank, peer); };
    auto made =
        CreateWindowsHere(std::exchange(given_, std::vector<WindowOptions>(given_.size())), &hosts);
    made_.clear();
    for (size_t rank = 0; rank < given_.size(); ++rank) {
      if (made.ok()) {
        made_.emplace_back(std::move((*made)[rank]));
      } else {
        made_.emplace_back(made.status());
      }
    }
    given_count_ = 0;
  }

  std::vector<Reaches> reaches_;  // by rank
  Mutex mutex_;
  CondVar changed_;
  std::vector<WindowOptions> given_ ABSL_GUARDED_BY(mutex_);
  size_t given_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::optional<absl::StatusOr<std::unique_ptr<Window>>>> made_ ABSL_GUARDED_BY(mutex_);
  std::deque<Source> sources_;
};

}  // namespace pelton

#endif  // PELTON_COMM_WINDOW_TEST_WINDOWS_H_
