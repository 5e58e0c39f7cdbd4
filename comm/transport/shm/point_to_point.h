// Send and receive.
#ifndef PELTON_COMM_TRANSPORT_SHM_POINT_TO_POINT_H_
#define PELTON_COMM_TRANSPORT_SHM_POINT_TO_POINT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "comm/transport/shm/context.h"
#include "core/memory/region.h"
#include "core/pipeline/operation.h"

namespace pelton::shm {

// Runs a communicator's sends and receives. The sender posts into the channel towards its peer; the
// receiver takes the oldest post with its tag, reads the data out of the sender's memory and
// answers in the post's entry: S bytes read and written once. Threads: one at a time; oldest_peer()
// by any. Owns: copies of private memory that a peer cannot read.
class PointToPoint {
 public:
  // Called for each operation that ends, with its ticket.
  using OnDone = absl::FunctionRef<void(uint64_t ticket, const absl::Status& status)>;

  explicit PointToPoint(const Context& context);
  ~PointToPoint();

  bool is_idle() const { return pending_.empty(); }
  // A peer with a post of `tag` that no receive has taken, in turn, or kNoPeer. Until one is found
  // LookIfSought goes on looking.
  int FindSender(int32_t tag);
  // Whether somebody looks for a sender, and there is a new post.
  bool LookIfSought() { return is_sought_ && is_idle() && LookForPosts(); }
  // `memory` is what the operation reads or writes, in this process.
  absl::Status Start(const Operation& operation, uint64_t ticket, std::byte* memory);
  // Advances all by a bounded amount; true if anything moved. Errors: those that must abort the
  // communicator.
  absl::StatusOr<bool> Step(OnDone on_done);
  // Drops all.
  void Cancel();

  // Whether one in flight is with `peer`.
  bool Needs(int peer) const;
  // The peer of the oldest one in flight, or kNoPeer.
  int oldest_peer() const { return oldest_peer_.load(std::memory_order_relaxed); }

 private:
  struct Pending {
    Operation operation;
    uint64_t ticket = 0;
    std::byte* memory = nullptr;
    std::unique_ptr<Region> copy;  // of what is sent, where the peer cannot read it itself
    bool is_matched = false;       // a send: is posted; a receive: has found its send
    uint16_t entry = 0;            // in the channel
    uint64_t received_bytes = 0;
    Reach from;
  };
  enum class Outcome : uint8_t { kWaiting, kMoved, kDone };

  absl::StatusOr<Outcome> StepSend(Pending& send, absl::Status* status);
  absl::StatusOr<Outcome> StepReceive(Pending& receive, absl::Status* status);
  // An entry for a send to `peer`; nothing while all of them wait to be answered.
  std::optional<uint16_t> TakeEntry(int peer);
  void TakeBackCopy(const Pending& pending) const;
  // Whether there are new ones.
  bool LookForPosts();
  bool HasPost(int peer, int32_t tag) const;
  bool Match(Pending& receive);
  // Towards this rank from `peer`.
  Channel& ChannelFrom(int peer) const { return context_.arena.channel(peer, context_.rank); }
  Channel& ChannelTo(int peer) const { return context_.arena.channel(context_.rank, peer); }
  void Answer(Pending& receive, Channel::Answer answer);
  void NoteOldest();

  const Context& context_;
  std::vector<Pending> pending_;                     // in launch order
  std::vector<uint64_t> posted_;                     // sends to each peer
  std::vector<std::vector<uint16_t>> free_entries_;  // of the channel to each peer, used before
  std::vector<uint16_t> unused_entries_;             // the first entry to each peer that never was
  std::vector<uint64_t> seen_;                       // posts of each peer that were looked at
  std::vector<std::vector<uint16_t>> unmatched_;  // entries of each peer's posts without a receive
  std::vector<bool> is_blocked_;                  // in this step: the channel to each peer is full
  int next_sender_ = 0;                           // whom FindSender asks first
  bool is_sought_ = false;
  std::atomic<int> oldest_peer_ = kNoPeer;
};

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_POINT_TO_POINT_H_
