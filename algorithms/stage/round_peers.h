// With whom this rank exchanges in the round under way.
#ifndef PELTON_ALGORITHMS_STAGE_ROUND_PEERS_H_
#define PELTON_ALGORITHMS_STAGE_ROUND_PEERS_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/scratch.h"
#include "comm/topology/matching.h"
#include "comm/topology/peer_source.h"
#include "core/base/ids.h"
#include "core/pipeline/pipeline.h"
#include "core/pipeline/standard_stages.h"

namespace pelton {

// One for all buckets of a model: they have the same peer in a round. Steps are rounds, from 0.
//
// With a matchmaker the peer is whom it finds, and the round is no affair of any other rank:
// nothing compares rounds, and the pair's operations match because each end has one peer at a time
// and runs its buckets in plan order. Without one all ranks are at the same round. The peer is
// shift_one's then, or that of a source: the first bucket of a round finds out whether every rank
// has the source's answer, and where any lacks it, all fall back to shift_one for that round, so
// that both ends always agree. The answer of a round is asked for in the round of pairs before, so
// that rounds without pairs ask for none. Steps of that agreement: one allreduce (MIN). Bytes:
// those of an allreduce of one byte. Threads: its stages'. Owns: one byte for the agreement;
// borrows communicator, source and matchmaker, which outlive it.
class RoundPeers {
 public:
  // The ranks are those of `communicator`; at most one of the two is not null. Rounds that are
  // multiples of `global_interval` have no pairs; 0: all have. Errors: those of Scratch::Create.
  static absl::StatusOr<std::unique_ptr<RoundPeers>> Create(Communicator& communicator,
                                                            PeerSource* source,
                                                            Matchmaker* matchmaker,
                                                            uint64_t global_interval);

  // Begins to find the peer of the run's round; nothing to do for all but its first bucket.
  void Start(const BucketRun& run);
  // True once peer() holds. Blocks: never. Errors: those of the agreement, or the matchmaker's.
  absl::StatusOr<bool> Advance(BucketRun& run);
  // This rank itself where it sits the round out.
  Rank peer() const { return peer_; }
  // Whether it is the matchmaker that peer() waits for.
  bool awaits_match() const { return matchmaker_ != nullptr && !is_settled_; }

 private:
  RoundPeers(Communicator& communicator, PeerSource* source, Matchmaker* matchmaker,
             uint64_t global_interval, std::unique_ptr<Scratch> scratch);
  uint8_t& everyone_knows() const { return *reinterpret_cast<uint8_t*>(scratch_->data()); }
  void BeginAgreement(uint64_t step);
  uint64_t NextStepAfter(uint64_t step) const;

  const CommunicatorId communicator_;
  const Seat seat_;
  PeerSource* const source_;
  Matchmaker* const matchmaker_;
  const uint64_t global_interval_;
  const std::unique_ptr<Scratch> scratch_;  // null without a source
  Round round_{0};                          // that peer_ and chosen_ are of
  bool is_settled_ = false;
  Rank peer_;
  std::optional<Rank> chosen_;  // by the source
  OperationBatch agreement_;
};

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_ROUND_PEERS_H_
