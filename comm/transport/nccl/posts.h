// What the ranks tell each other of their operations, beside the data: NCCL itself hangs when they
// differ, cannot say who is missing, and tells nobody why a rank gave up.
#ifndef PELTON_COMM_TRANSPORT_NCCL_POSTS_H_
#define PELTON_COMM_TRANSPORT_NCCL_POSTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace pelton::nccl {

// One end of an edge of a neighbour operation, and what is under way of it.
// Threads: a value. Owns: nothing.
struct EdgePost {
  Operation mine;  // as the message that carries the tensor
  Operation theirs = {};
  Rank peer;
  size_t index = 0;  // in the table's list of sources or destinations
  Completion first = {};
  Completion second = {};
  bool differs = false;  // from what the peer says of it: nothing is moved

  bool sends() const { return mine.kind == OperationKind::kSend; }
};

// One operation's record under way to its peers and theirs to us.
// Threads: one at a time. Owns: the records; they stay where they are until it is done.
struct Post {
  enum class Phase { kNew, kHalf, kSent, kDone };
  Operation mine;
  std::vector<Operation> theirs;  // by rank, or the peer's
  Phase phase = Phase::kNew;
  Completion first;             // of the collective, or of the record we sent
  Completion second;            // of the record we get
  std::vector<EdgePost> edges;  // of a neighbour operation, in place of the others
  size_t launched = 0;          // of the edges' records, two each
};

// Tags of the host's messages; sends and receives have one each, so that an exchange's do not meet.
inline constexpr int32_t kSendersPostTag = 0;
inline constexpr int32_t kReceiversPostTag = 1;
inline constexpr int32_t kPairIdTag = 2;
inline constexpr int32_t kEdgeSendersPostTag = 3;
inline constexpr int32_t kEdgeReceiversPostTag = 4;

// Sends and compares posts over the host's communicator of the same ranks.
// Threads: as Communicator. Owns: a list of what is under way there.
class PostExchange {
 public:
  explicit PostExchange(Communicator& host) : host_(host) {}

  // Takes the next steps of `post`; true once the peers' records are here and agree with ours.
  // Blocks: never. Errors: InvalidArgument: they differ, and how: the same text on all ranks
  // concerned; those of the host's communicator, which has then ended.
  absl::StatusOr<bool> Advance(Post& post);
  // Whether the host's communicator takes another operation. A communicator that is full and one
  // that was aborted for want of memory answer with the same code, so we count. Blocks: never.
  bool HasRoom() const;
  // That something was launched there beside the posts, and that its end was seen.
  void Note() { ++unseen_; }
  void Seen() { --unseen_; }
  // What has ended the host's communicator; OK while it takes operations. Called when the posts are
  // done and the device is still at work, because then no wait on the host would notice that a peer
  // gives up. Blocks: never.
  absl::Status HostStatus();
  // Whether that error says that the ranks' operations differ, and not that the host failed.
  static bool IsDisagreement(const Post& post) { return post.phase == Post::Phase::kDone; }

 private:
  absl::StatusOr<bool> Launch(Post& post);
  absl::StatusOr<bool> LaunchPair(Post& post);
  absl::StatusOr<bool> AdvanceEdges(Post& post);
  absl::Status LaunchEdges(Post& post);
  absl::StatusOr<bool> SeeEdges(Post& post);
  absl::Status CompareEdges(Post& post) const;
  // Notes the end of one of the host's operations, once; true if it is done.
  absl::StatusOr<bool> See(Completion& completion);
  absl::Status Compare(const Post& post) const;

  Communicator& host_;
  size_t unseen_ = 0;  // operations there that have not been seen to be done
};

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_POSTS_H_
