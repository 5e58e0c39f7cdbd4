// Peers among the ranks that are there now, by questions to the control plane.
#ifndef PELTON_BACKEND_ARRIVAL_MATCHMAKER_H_
#define PELTON_BACKEND_ARRIVAL_MATCHMAKER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/topology/matchmaker.h"
#include "core/base/ids.h"
#include "core/base/sync.h"

namespace pelton {

// Asks on a thread of its own, so that the rounds' scheduler goes on meanwhile. A call whose answer
// is lost is repeated: the coordinator has the same decision for it.
// Threads: as Matchmaker. Owns: its thread; borrows the control.
class ArrivalMatchmaker final : public Matchmaker {
 public:
  struct Options {
    FindPeerRequest question;  // without its round
    Rank self;                 // one of its members; the answers are places among them
    absl::Duration timeout;    // of a round's question
    // Of one call; more than the coordinator leaves a rank waiting.
    absl::Duration call_timeout = kMostPeerPatience + absl::Seconds(1);
    std::function<void()> wake;  // called after each answer, on the thread that asks
  };

  ArrivalMatchmaker(Control& control, Options options);
  // Blocks: until the call under way is answered, at most its timeout.
  ~ArrivalMatchmaker() override;
  ArrivalMatchmaker(const ArrivalMatchmaker&) = delete;
  ArrivalMatchmaker& operator=(const ArrivalMatchmaker&) = delete;

  void Ask(Round round) override;
  absl::StatusOr<std::optional<Rank>> Answer() override;

 private:
  void Run();
  // Errors: names rank, round and time.
  absl::StatusOr<Rank> Find(Round round);
  bool stopping();

  Control& control_;
  const Options options_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Round> wanted_ ABSL_GUARDED_BY(mutex_);  // not asked for yet
  Round asked_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::StatusOr<Rank>> answer_ ABSL_GUARDED_BY(mutex_);  // for asked_
  std::thread thread_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_ARRIVAL_MATCHMAKER_H_
