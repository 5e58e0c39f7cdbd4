// Ranks whose trainer is gone while its daemon waits for another one.
#ifndef PELTON_CORE_BASE_ABSENCES_H_
#define PELTON_CORE_BASE_ABSENCES_H_

#include <map>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/moving_deadline.h"
#include "core/base/sync.h"

namespace pelton {

// While any rank is absent deadlines stand still. An absence that begins twice counts once, so that
// a thread that reads of absences may begin to read anew.
// Threads: any. Owns: which ranks are absent, and why.
class Absences {
 public:
  // `text` says it to people, and is written to the log.
  void Begin(Rank rank, const std::string& text) {
    {
      MutexLock lock(&mutex_);
      if (!absent_.emplace(rank, text).second) return;
      standstill_.Begin(Clock::Real().Now());
    }
    Log(LogLevel::kWarning, text);
  }
  void End(Rank rank) {
    MutexLock lock(&mutex_);
    if (absent_.erase(rank) > 0) standstill_.End(Clock::Real().Now());
  }
  // Of all ranks.
  void EndAll() {
    MutexLock lock(&mutex_);
    for (; !absent_.empty(); absent_.erase(absent_.begin())) {
      standstill_.End(Clock::Real().Now());
    }
  }

  const Standstill& standstill() const { return standstill_; }
  std::vector<Rank> ranks() const {
    MutexLock lock(&mutex_);
    std::vector<Rank> ranks;
    for (const auto& [rank, text] : absent_) ranks.push_back(rank);
    return ranks;
  }
  // By rank.
  std::vector<std::string> texts() const {
    MutexLock lock(&mutex_);
    std::vector<std::string> texts;
    for (const auto& [rank, text] : absent_) texts.push_back(text);
    return texts;
  }

 private:
  Standstill standstill_;
  mutable Mutex mutex_;
  std::map<Rank, std::string> absent_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pelton

#endif  // PELTON_CORE_BASE_ABSENCES_H_
