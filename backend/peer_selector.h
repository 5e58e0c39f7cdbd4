// The control plane's matchings for the ranks of one group, fetched ahead of their use.
#ifndef PELTON_BACKEND_PEER_SELECTOR_H_
#define PELTON_BACKEND_PEER_SELECTOR_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/topology/matching.h"
#include "comm/topology/peer_source.h"
#include "core/base/ids.h"
#include "core/base/sync.h"

namespace pelton {

// Asks the coordinator on a thread of its own, so that no round waits for it. An answer that does
// not come, or makes no sense, is one that this rank lacks: who uses the source falls back.
// Threads: as PeerSource. Owns: its thread; borrows the control.
class PeerSelector final : public PeerSource {
 public:
  static constexpr absl::Duration kAnswerTimeout = absl::Seconds(2);

  // `question` without its step; `self` is one of its members, and the ranks of the answers are
  // places among them.
  PeerSelector(Control& control, SelectPeersRequest question, Rank self);
  // Blocks: at most kAnswerTimeout.
  ~PeerSelector() override;
  PeerSelector(const PeerSelector&) = delete;
  PeerSelector& operator=(const PeerSelector&) = delete;

  std::optional<Rank> PeerAt(uint64_t step) override;
  void Prefetch(uint64_t step) override;

 private:
  void Run();
  // The peer that `matching` gives this rank; nothing if it is no matching.
  std::optional<Rank> PeerIn(const Matching& matching) const;

  Control& control_;
  const SelectPeersRequest question_;
  const size_t place_;

  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<uint64_t> wanted_ ABSL_GUARDED_BY(mutex_);       // steps, oldest first
  std::map<uint64_t, Rank> answers_ ABSL_GUARDED_BY(mutex_);  // by step
  std::thread thread_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_PEER_SELECTOR_H_
