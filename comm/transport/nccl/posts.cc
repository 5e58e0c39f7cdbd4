#include "comm/transport/nccl/posts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "comm/transport/operation_check.h"
#include "core/base/status.h"

namespace pelton::nccl {
namespace {

Tensor Bytes(Operation* records, size_t count) {
  return {records, count * sizeof(Operation), DType::kUInt8};
}

}  // namespace

absl::StatusOr<bool> IsLaunched(const absl::StatusOr<Completion>& answer, Completion& launched) {
  if (absl::IsResourceExhausted(answer.status())) return false;
  RETURN_IF_ERROR(answer.status());
  launched = *answer;
  return true;
}

// Why no post and no abort is lost. A post goes one way, kNew to kDone, and notes each operation
// that it has launched: where there is no room in between (kHalf) it goes on with the next one
// later, and sends nothing twice. Its records are the host's memory until all operations are done,
// which is why a Post stays where it is. There is always somebody to look: Advance is called with
// every Progress until the post is done, and the host's communicator wakes a parked caller when one
// of its operations moves. Posts of collectives are launched in the order of the operations on all
// ranks (FlightQueue::AdvancePosts), and those of edges and of pairs differ by tag. An abort on the
// host ends all operations in flight with its reason, which Query returns here; where none is in
// flight, HostStatus asks for it.
absl::StatusOr<bool> PostExchange::Advance(Post& post) {
  if (post.phase == Post::Phase::kDone) return true;
  const bool has_edges = IsNeighborKind(post.mine.kind) || IsPointToPoint(post.mine.kind);
  return has_edges ? AdvanceEdges(post) : AdvanceCollective(post);
}

absl::StatusOr<bool> PostExchange::AdvanceCollective(Post& post) {
  if (post.phase == Post::Phase::kNew) {
    post.theirs.resize(static_cast<size_t>(host_.world_size().value()));
    ASSIGN_OR_RETURN(const bool is_launched,
                     IsLaunched(AllGather(host_, Bytes(&post.mine, 1),
                                          Bytes(post.theirs.data(), post.theirs.size())),
                                post.gathering));
    if (!is_launched) return false;
    post.phase = Post::Phase::kSent;
  }
  ASSIGN_OR_RETURN(const bool is_done, See(post.gathering));
  if (!is_done) return false;
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
  const bool is_pair = IsPointToPoint(post.mine.kind);
  const int32_t senders = is_pair ? kSendersPostTag : kEdgeSendersPostTag;
  const int32_t receivers = is_pair ? kReceiversPostTag : kEdgeReceiversPostTag;
  while (post.launched < 2 * post.edges.size()) {
    EdgePost& edge = post.edges[post.launched / 2];
    const int32_t mine = edge.sends() ? senders : receivers;
    const int32_t theirs = edge.sends() ? receivers : senders;
    ASSIGN_OR_RETURN(
        const bool is_launched,
        post.launched % 2 == 0
            ? IsLaunched(Send(host_, Bytes(&edge.mine, 1), edge.peer, mine), edge.first)
            : IsLaunched(Recv(host_, Bytes(&edge.theirs, 1), edge.peer, theirs), edge.second));
    if (!is_launched) return absl::OkStatus();
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
    // Of a send or receive both ends speak of the send.
    const bool is_theirs = IsPointToPoint(post.mine.kind) && !edge.sends();
    first = absl::InvalidArgumentError(
        absl::StrCat(Describe(is_theirs ? edge.theirs : post.mine), ": ", difference));
  }
  return first;
}

// A look for messages asks each of the wires below, and a wire that has ended answers with the
// reason of its end. A communicator of several wires learns only from them that a peer gave up, and
// asks them for nothing while no operation of its own is in flight.
absl::Status PostExchange::HostStatus() {
  const absl::Status status = host_.FindSender(kNobodysTag).status();
  // Peers that have left in good order send no more, and this rank expects nothing of them.
  const bool goes_on = absl::IsNotFound(status) || absl::IsUnimplemented(status);
  return goes_on ? absl::OkStatus() : status;
}

absl::Status PostExchange::Compare(const Post& post) const {
  const Operation& first = post.theirs[0];
  for (size_t r = 1; r < post.theirs.size(); ++r) {
    const Rank rank(static_cast<int32_t>(r));
    const std::string difference = DifferenceOf(first, Rank(0), post.theirs[r], rank);
    if (difference.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(Describe(first), ": ", difference));
  }
  return absl::OkStatus();
}

}  // namespace pelton::nccl
