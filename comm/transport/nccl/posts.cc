#include "comm/transport/nccl/posts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "comm/transport/operation_check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton::nccl {
namespace {

Tensor Bytes(Operation* records, size_t count) {
  return {records, count * sizeof(Operation), DType::kUInt8};
}

}  // namespace

// Why no post and no abort is lost. A post goes one way, kNew to kDone, and notes each operation
// that it has launched: where there is no room in between (kHalf) it goes on with the second one
// later, and sends nothing twice. Its records are the host's memory until both operations are done,
// which is why a Post stays where it is. There is always somebody to look: Advance is called with
// every Progress until the post is done, and the host's communicator wakes a parked caller when one
// of its operations moves. Posts of collectives are launched in the order of the operations on all
// ranks (FlightQueue::AdvancePosts), and those of pairs differ by tag. An abort on the host ends
// all operations in flight with its reason, which Query returns here; where none is in flight,
// HostStatus asks for it.
absl::StatusOr<bool> PostExchange::Advance(Post& post) {
  if (post.phase == Post::Phase::kDone) return true;
  if (IsNeighborKind(post.mine.kind)) return AdvanceEdges(post);
  if (post.phase != Post::Phase::kSent) {
    ASSIGN_OR_RETURN(const bool launched, Launch(post));
    if (!launched) return false;
  }
  for (Completion* completion : {&post.first, &post.second}) {
    ASSIGN_OR_RETURN(const bool is_done, See(*completion));
    if (!is_done) return false;
  }
  post.phase = Post::Phase::kDone;
  RETURN_IF_ERROR(Compare(post));
  return true;
}

absl::StatusOr<bool> PostExchange::See(Completion& completion) {
  if (completion.ticket == 0) return true;  // there is none, or it was seen before
  const Communicator::State state = host_.Query(completion);
  if (!state.done) return false;
  RETURN_IF_ERROR(state.status);
  completion = Completion{};
  Seen();
  return true;
}

// Records of many edges may be more than the host takes at once: what is done makes room for the
// next.
absl::StatusOr<bool> PostExchange::AdvanceEdges(Post& post) {
  ASSIGN_OR_RETURN(bool all_seen, SeeEdges(post));
  if (post.phase != Post::Phase::kSent) {
    RETURN_IF_ERROR(LaunchEdges(post));
    if (post.phase != Post::Phase::kSent) return false;
    ASSIGN_OR_RETURN(all_seen, SeeEdges(post));
  }
  if (!all_seen) return false;
  post.phase = Post::Phase::kDone;
  RETURN_IF_ERROR(CompareEdges(post));
  return true;
}

absl::Status PostExchange::LaunchEdges(Post& post) {
  while (post.launched < 2 * post.edges.size()) {
    if (!HasRoom()) return absl::OkStatus();
    EdgePost& edge = post.edges[post.launched / 2];
    const int32_t mine = edge.sends() ? kEdgeSendersPostTag : kEdgeReceiversPostTag;
    const int32_t theirs = edge.sends() ? kEdgeReceiversPostTag : kEdgeSendersPostTag;
    if (post.launched % 2 == 0) {
      ASSIGN_OR_RETURN(edge.first, Send(host_, Bytes(&edge.mine, 1), edge.peer, mine));
    } else {
      ASSIGN_OR_RETURN(edge.second, Recv(host_, Bytes(&edge.theirs, 1), edge.peer, theirs));
    }
    Note();
    ++post.launched;
    post.phase = Post::Phase::kHalf;
  }
  post.phase = Post::Phase::kSent;
  return absl::OkStatus();
}

// Whether all that was launched has ended.
absl::StatusOr<bool> PostExchange::SeeEdges(Post& post) {
  bool all_seen = true;
  for (EdgePost& edge : post.edges) {
    ASSIGN_OR_RETURN(const bool first, See(edge.first));
    ASSIGN_OR_RETURN(const bool second, See(edge.second));
    all_seen = all_seen && first && second;
  }
  return all_seen;
}

// Says of every edge whether it differs, and fails with the first one that does.
absl::Status PostExchange::CompareEdges(Post& post) const {
  absl::Status first;
  for (EdgePost& edge : post.edges) {
    const Rank rank = host_.rank();
    std::string difference = edge.sends()
                                 ? DifferenceOfPair(edge.mine, rank, edge.theirs, edge.peer)
                                 : DifferenceOfPair(edge.theirs, edge.peer, edge.mine, rank);
    if (difference.empty() && edge.mine.tag != edge.theirs.tag) {
      difference = absl::StrCat("tag is ", edge.mine.tag, " on rank ", rank.value(), " and ",
                                edge.theirs.tag, " on rank ", edge.peer.value(),
                                "; NCCL has none: launch them in the same order on both");
    }
    edge.differs = !difference.empty();
    if (!edge.differs || !first.ok()) continue;
    first = absl::InvalidArgumentError(absl::StrCat(Describe(post.mine), ": ", difference));
  }
  return first;
}

// An operation that is always invalid asks the host's communicator for its state without changing
// it. A communicator that has ended refuses every operation with the reason of its end; one that
// goes on refuses this operation as CheckOperation does.
absl::Status PostExchange::HostStatus() {
  if (!HasRoom()) return absl::OkStatus();  // an operation in flight will return the error
  Operation refused;
  refused.kind = OperationKind::kBroadcast;
  HostStream stream;
  const absl::Status status = host_.Launch(refused, stream).status();
  const bool runs = status == CheckOperation(refused, host_.rank(), host_.world_size());
  return runs ? absl::OkStatus() : status;
}

bool PostExchange::HasRoom() const { return unseen_ < limits::kMaxOperationsInFlight; }

// True once all of it is launched.
absl::StatusOr<bool> PostExchange::Launch(Post& post) {
  if (IsPointToPoint(post.mine.kind)) return LaunchPair(post);
  if (!HasRoom()) return false;
  post.theirs.resize(static_cast<size_t>(host_.world_size().value()));
  ASSIGN_OR_RETURN(post.first, AllGather(host_, Bytes(&post.mine, 1),
                                         Bytes(post.theirs.data(), post.theirs.size())));
  Note();
  post.phase = Post::Phase::kSent;
  return true;
}

absl::StatusOr<bool> PostExchange::LaunchPair(Post& post) {
  const bool sends = post.mine.kind == OperationKind::kSend;
  const Rank peer(post.mine.peer);
  post.theirs.resize(1);
  if (post.phase == Post::Phase::kNew) {
    if (!HasRoom()) return false;
    ASSIGN_OR_RETURN(post.first, Send(host_, Bytes(&post.mine, 1), peer,
                                      sends ? kSendersPostTag : kReceiversPostTag));
    Note();
    post.phase = Post::Phase::kHalf;
  }
  if (!HasRoom()) return false;
  ASSIGN_OR_RETURN(post.second, Recv(host_, Bytes(post.theirs.data(), 1), peer,
                                     sends ? kReceiversPostTag : kSendersPostTag));
  Note();
  post.phase = Post::Phase::kSent;
  return true;
}

absl::Status PostExchange::Compare(const Post& post) const {
  const Rank rank = host_.rank();
  const Operation& mine = post.mine;
  std::string difference;
  const Operation* first = &post.theirs[0];
  if (IsPointToPoint(mine.kind)) {
    const Rank peer(mine.peer);
    const bool sends = mine.kind == OperationKind::kSend;
    if (sends) first = &mine;
    difference = sends ? DifferenceOfPair(mine, rank, post.theirs[0], peer)
                       : DifferenceOfPair(post.theirs[0], peer, mine, rank);
  }
  for (size_t r = 1; r < post.theirs.size() && difference.empty(); ++r) {
    difference = DifferenceOf(*first, Rank(0), post.theirs[r], Rank(static_cast<int32_t>(r)));
  }
  if (difference.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(*first), ": ", difference));
}

}  // namespace pelton::nccl
