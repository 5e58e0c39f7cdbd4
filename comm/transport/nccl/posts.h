// What the ranks tell each other of their operations, beside the data: NCCL itself hangs when they
// differ, cannot say who is missing, and tells nobody why a rank gave up.
#ifndef PELTON_COMM_TRANSPORT_NCCL_POSTS_H_
#define PELTON_COMM_TRANSPORT_NCCL_POSTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace pelton::nccl {

// One end of an edge of a neighbour operation, or a send or receive, and what is under way of it.
// Threads: a value. Owns: nothing.
struct EdgePost {
  Operation mine;  // as the message that carries the tensor
  Operation theirs = {};
  Rank peer;
  size_t index = 0;  // in a table's list of sources or destinations
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
  Phase phase = Phase::kNew;
  std::vector<Operation> theirs;  // of a collective of all, by rank
  Completion gathering;           // of those records
  std::vector<EdgePost> edges;    // of any other operation
  size_t launched = 0;            // of the edges' records, two each
};

// Tags of the host's messages; sends and receives have one each, so that an exchange's do not meet.
inline constexpr int32_t kSendersPostTag = 0;
inline constexpr int32_t kReceiversPostTag = 1;
inline constexpr int32_t kPairIdTag = 2;
inline constexpr int32_t kEdgeSendersPostTag = 3;
inline constexpr int32_t kEdgeReceiversPostTag = 4;
inline constexpr int32_t kNobodysTag = 5;  // no message has it

// Sends and compares posts over the host's communicator of the same ranks.
// Threads: as Communicator. Owns: nothing.
class PostExchange {
 public:
  explicit PostExchange(Communicator& host) : host_(host) {}

  // Takes the next steps of `post`; true once the peers' records are here and agree with ours.
  // Blocks: never. Errors: InvalidArgument: they differ, and how: the same text on all ranks
  // concerned; those of the host's communicator, which has then ended.
  absl::StatusOr<bool> Advance(Post& post);
  // What has ended the host's communicator; OK while it takes operations, and where it does not
  // know FindSender. For waits for NCCL while no post is in flight, because then no wait on the
  // host would notice that a peer gives up. Blocks: never.
  absl::Status HostStatus();
  // Whether that error says that the ranks' operations differ, and not that the host failed.
  static bool IsDisagreement(const Post& post) { return post.phase == Post::Phase::kDone; }

 private:
  absl::StatusOr<bool> AdvanceCollective(Post& post);
  absl::StatusOr<bool> AdvanceEdges(Post& post);
  absl::Status LaunchEdges(Post& post);
  absl::StatusOr<bool> SeeEdges(Post& post);
  absl::Status CompareEdges(Post& post) const;
  // Whether one of the host's operations has ended well; its completion is forgotten then.
  absl::StatusOr<bool> See(Completion& completion);
  absl::Status Compare(const Post& post) const;

  Communicator& host_;
};

// Keeps what a launch on the host has answered. False: there is no room now, so that it is to be
// tried again. Errors: those of the launch.
absl::StatusOr<bool> IsLaunched(const absl::StatusOr<Completion>& answer, Completion& launched);

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_POSTS_H_
