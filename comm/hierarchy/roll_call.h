// All ranks of a group launch the same collective, or all of them learn what differs.
#ifndef PELTON_COMM_HIERARCHY_ROLL_CALL_H_
#define PELTON_COMM_HIERARCHY_ROLL_CALL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/hierarchy/layout.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton::hierarchy {

// Before a collective begins every rank learns whether all of them have launched the same one, so
// that a difference is found before anything is written, is told in the same words on all ranks and
// harms no later collective. The first rank of a host leads it:
//
//   members -> leader       each its operation
//   leader  -> leaders      round k: what it knows, to the host 2^k further on; ceil(log2 hosts)
//                           rounds (dissemination: Hensgen, Finkel and Manber 1988)
//   leader  -> members      what it knows by then, which is all
//
// A host of m ranks sends 2 (m - 1) messages inside and at most log2 of the hosts' number outside.
// What a rank knows is the operation of the lowest rank in the messages so far, and the lowest rank
// whose operation differs from it. Two such records are merged into the lower ranks of both, so
// that neither order nor repetition matters.
//
// A rank that has waited for 10 ms tells those who wait for its last message for whom that one
// waits, and again when that changes: of the rounds before only, so that no rank is told what it
// has said itself. So after 20 ms every rank that has launched names one that has not, and none
// that has, except a leader that has launched just now and waits. It names all ranks that have not,
// unless a leader is among them, because a missing leader hides ranks of its host.
// Threads: one at a time. Owns: the messages; runner, layout and clock outlive it.
class RollCall {
 public:
  RollCall(OperationRunner& runner, const Layout& layout, Rank rank, const Clock& clock);

  // Begins for the next collective of this rank; the one before is done.
  void Start(const Operation& mine);
  // True once all ranks' operations are known. Blocks: never. Errors: the runner's.
  absl::StatusOr<bool> Advance();
  bool moved() const { return moved_; }
  // InvalidArgument if the ranks' operations differ: the same on all ranks.
  absl::Status Difference() const;
  // Whose operation is waited for, as far as this rank was told.
  std::vector<Rank> Missing() const;

  // Units: bytes of each message in a group of this size.
  static size_t MessageBytes(WorldSize world_size);

 private:
  using Bits = std::vector<uint64_t>;  // one for each rank
  struct Claim {
    Operation operation;
    int32_t rank = kNoPeer;
  };
  // What one rank tells another. On the wire the bits of those whom it waits for come behind it.
  struct Message {
    Claim first;  // of the lowest rank
    Claim other;  // of the lowest rank that differs from it
    bool is_last = false;
  };
  // To or from a peer.
  struct Way {
    Rank peer;
    size_t after = 0;                   // ways in that must be over before its last message goes
    std::unique_ptr<uint64_t[]> words;  // of a message; the runner keeps its address
    Bits awaited;  // for whom the last message waits, as told; empty: it was not
    Completion completion;
    bool is_in_flight = false;
    bool is_over = false;  // its last message has come or gone
  };

  void Add(std::vector<Way>& ways, Rank peer, size_t after) const;
  absl::Status Receive(Way& from);
  void TakeIn(Way& from);
  void Merge(const Message& message);
  absl::Status Send();
  absl::StatusOr<bool> Send(Way& to, bool is_last);
  absl::Status TellIfLate();
  absl::Status TellOf(Way& to);
  absl::StatusOr<bool> Launch(OperationKind kind, Way& way);
  absl::StatusOr<bool> IsFree(Way& way);
  size_t ways_over() const;
  bool is_done() const;
  // For whom the first `ways` wait. `silent_leaders`: those, too, that have told nothing.
  Bits AwaitedIn(size_t ways, bool silent_leaders) const;

  OperationRunner& runner_;
  const Rank rank_;
  const size_t ranks_;
  const Clock& clock_;
  size_t members_ = 0;  // that this rank leads, beside itself: the first ways in
  std::vector<Way> in_;
  std::vector<Way> out_;
  Message known_;
  absl::Time next_look_;
  int looks_ = 0;
  bool moved_ = false;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_ROLL_CALL_H_
