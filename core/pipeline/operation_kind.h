// The kinds of operations, and what each of them does with its tensors: one row for each, in one
// table. Whatever treats the kinds alike asks a row, so that a new kind needs no edit there; only a
// transport that runs some kinds natively names them, and runs all others as programs
// (comm/collectives/program.h).
#ifndef PELTON_CORE_PIPELINE_OPERATION_KIND_H_
#define PELTON_CORE_PIPELINE_OPERATION_KIND_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>

#include "absl/strings/string_view.h"

namespace pelton {

// The numbers are part of the wire format: append only.
enum class OperationKind : uint8_t {
  kBarrier = 0,
  kAllReduce = 1,
  kReduce = 2,
  kReduceScatter = 3,
  kAllGather = 4,
  kBroadcast = 5,
  kGather = 6,
  kScatter = 7,
  kAllToAll = 8,
  kAllToAllV = 9,
  kSend = 10,
  kRecv = 11,
  kNeighborAllReduce = 12,
  kNeighborAllGather = 13,
};

// Who takes part.
enum class KindScope : uint8_t {
  kCollective,    // all ranks
  kPointToPoint,  // a sender and its receiver
  kNeighbors,     // each rank and its neighbours in a weight table
  kReserved,      // nobody: the number is taken, and every communicator refuses it
};

// How long one of an operation's two tensors is, for a count of `count` on n ranks. Units:
// elements.
enum class TensorLength : uint8_t {
  kNone,          // the tensor is not looked at
  kCount,         // [count]
  kChunks,        // [n, count]
  kCountOnRoot,   // [count] on the root, not looked at elsewhere
  kChunksOnRoot,  // [n, count] on the root, not looked at elsewhere
  kOfNeighbors,   // what the weight table says
};

// How source and target may share memory.
enum class InPlaceForm : uint8_t {
  kNever,
  kSame,              // target is source
  kTargetIsOwnChunk,  // target is this rank's chunk of source
  kSourceIsOwnChunk,  // source is this rank's chunk of target
};

// For OperationTraits::sent_bytes.
struct SentBytesInput {
  uint64_t count_bytes = 0;  // of `count` elements
  uint64_t ranks = 1;
  bool is_root = false;
};

// A row of the table. Threads: a value. Owns: nothing.
struct OperationTraits {
  OperationKind kind = OperationKind::kBarrier;
  absl::string_view name = "unknown operation";
  KindScope scope = KindScope::kReserved;
  TensorLength source = TensorLength::kNone;
  TensorLength target = TensorLength::kNone;
  bool reduces = false;   // looks at `reduce_op`
  bool has_root = false;  // `peer` is one
  InPlaceForm in_place = InPlaceForm::kNever;
  // What a rank sends in an optimal schedule, where everything but a root's part is spread evenly.
  // Units: bytes, rounded down.
  uint64_t (*sent_bytes)(const SentBytesInput& input) = nullptr;  // null: nothing
};

namespace sent {

constexpr uint64_t Once(const SentBytesInput& input) { return input.count_bytes; }
constexpr uint64_t ToAll(const SentBytesInput& input) {
  return input.count_bytes * (input.ranks - 1);
}
constexpr uint64_t ThereAndBack(const SentBytesInput& input) {
  return 2 * input.count_bytes * (input.ranks - 1) / input.ranks;
}
constexpr uint64_t OnceToRoot(const SentBytesInput& input) {
  return input.is_root ? 0 : input.count_bytes;
}
constexpr uint64_t OnceFromRoot(const SentBytesInput& input) {
  return input.is_root && input.ranks > 1 ? input.count_bytes : 0;
}
constexpr uint64_t ToAllFromRoot(const SentBytesInput& input) {
  return input.is_root ? ToAll(input) : 0;
}

}  // namespace sent

// By number. What an operation between neighbours sends depends on its weight table, so that
// SentBytesOf (operation.h) answers for those.
inline constexpr OperationTraits kOperationTraits[] = {
    {.kind = OperationKind::kBarrier, .name = "barrier", .scope = KindScope::kCollective},
    {.kind = OperationKind::kAllReduce,
     .name = "allreduce",
     .scope = KindScope::kCollective,
     .source = TensorLength::kCount,
     .target = TensorLength::kCount,
     .reduces = true,
     .in_place = InPlaceForm::kSame,
     .sent_bytes = sent::ThereAndBack},
    {.kind = OperationKind::kReduce,
     .name = "reduce",
     .scope = KindScope::kCollective,
     .source = TensorLength::kCount,
     .target = TensorLength::kCountOnRoot,
     .reduces = true,
     .has_root = true,
     .in_place = InPlaceForm::kSame,
     .sent_bytes = sent::OnceToRoot},
    {.kind = OperationKind::kReduceScatter,
     .name = "reduce_scatter",
     .scope = KindScope::kCollective,
     .source = TensorLength::kChunks,
     .target = TensorLength::kCount,
     .reduces = true,
     .in_place = InPlaceForm::kTargetIsOwnChunk,
     .sent_bytes = sent::ToAll},
    {.kind = OperationKind::kAllGather,
     .name = "allgather",
     .scope = KindScope::kCollective,
     .source = TensorLength::kCount,
     .target = TensorLength::kChunks,
     .in_place = InPlaceForm::kSourceIsOwnChunk,
     .sent_bytes = sent::ToAll},
    {.kind = OperationKind::kBroadcast,  // the root's tensor is its target, too
     .name = "broadcast",
     .scope = KindScope::kCollective,
     .target = TensorLength::kCount,
     .has_root = true,
     .sent_bytes = sent::OnceFromRoot},
    {.kind = OperationKind::kGather,
     .name = "gather",
     .scope = KindScope::kCollective,
     .source = TensorLength::kCount,
     .target = TensorLength::kChunksOnRoot,
     .has_root = true,
     .sent_bytes = sent::OnceToRoot},
    {.kind = OperationKind::kScatter,
     .name = "scatter",
     .scope = KindScope::kCollective,
     .source = TensorLength::kChunksOnRoot,
     .target = TensorLength::kCount,
     .has_root = true,
     .sent_bytes = sent::ToAllFromRoot},
    {.kind = OperationKind::kAllToAll,
     .name = "alltoall",
     .scope = KindScope::kCollective,
     .source = TensorLength::kChunks,
     .target = TensorLength::kChunks,
     .sent_bytes = sent::ToAll},
    {.kind = OperationKind::kAllToAllV, .name = "alltoall_v"},
    {.kind = OperationKind::kSend,  // to rank `peer`, matched by `tag` in launch order
     .name = "send",
     .scope = KindScope::kPointToPoint,
     .source = TensorLength::kCount,
     .sent_bytes = sent::Once},
    {.kind = OperationKind::kRecv,
     .name = "recv",
     .scope = KindScope::kPointToPoint,
     .target = TensorLength::kCount},
    {.kind = OperationKind::kNeighborAllReduce,
     .name = "neighbor_allreduce",
     .scope = KindScope::kNeighbors,
     .source = TensorLength::kCount,
     .target = TensorLength::kCount},
    {.kind = OperationKind::kNeighborAllGather,
     .name = "neighbor_allgather",
     .scope = KindScope::kNeighbors,
     .source = TensorLength::kCount,
     .target = TensorLength::kOfNeighbors},
};
inline constexpr size_t kOperationKindCount = std::size(kOperationTraits);
inline constexpr OperationTraits kUnknownOperationTraits;

namespace operation_kind_internal {

constexpr bool AreInOrder() {
  for (size_t number = 0; number < kOperationKindCount; ++number) {
    if (static_cast<size_t>(kOperationTraits[number].kind) != number) return false;
  }
  return true;
}

}  // namespace operation_kind_internal
static_assert(operation_kind_internal::AreInOrder(), "a row's place is its kind's number");
static_assert(kOperationKindCount < 64, "a KindSet has 64 bits; a message's flags have 7");

// Of what is no kind, those of a kind that nobody runs.
constexpr const OperationTraits& TraitsOf(OperationKind kind) {
  const auto number = static_cast<size_t>(kind);
  return number < kOperationKindCount ? kOperationTraits[number] : kUnknownOperationTraits;
}

constexpr absl::string_view NameOf(OperationKind kind) { return TraitsOf(kind).name; }
// Whether a number that came over a wire is that of a kind.
constexpr bool IsOperationKind(OperationKind kind) {
  return static_cast<size_t>(kind) < kOperationKindCount;
}
constexpr bool IsPointToPoint(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kRecv;
}
constexpr bool IsNeighborKind(OperationKind kind) {
  return TraitsOf(kind).scope == KindScope::kNeighbors;
}
// Whether it looks at `reduce_op`.
constexpr bool Reduces(OperationKind kind) { return TraitsOf(kind).reduces; }
// Whether `peer` is a root.
constexpr bool HasRoot(OperationKind kind) { return TraitsOf(kind).has_root; }
// Whether the root has its tensor where the others get theirs, and no source.
constexpr bool RootReadsTarget(OperationKind kind) {
  return HasRoot(kind) && TraitsOf(kind).source == TensorLength::kNone;
}
// Whether it moves no elements: all that a rank gets is that the others came.
constexpr bool HasNoTensors(OperationKind kind) {
  const OperationTraits& traits = TraitsOf(kind);
  return traits.scope == KindScope::kCollective && traits.source == TensorLength::kNone &&
         traits.target == TensorLength::kNone;
}
constexpr bool HasChunks(TensorLength length) {
  return length == TensorLength::kChunks || length == TensorLength::kChunksOnRoot;
}
constexpr bool IsOnRootOnly(TensorLength length) {
  return length == TensorLength::kCountOnRoot || length == TensorLength::kChunksOnRoot;
}

// Some kinds: those that a transport runs natively, for instance. Threads: a value. Owns: nothing.
class KindSet {
 public:
  constexpr KindSet() = default;
  constexpr KindSet(std::initializer_list<OperationKind> kinds) {
    for (const OperationKind kind : kinds) bits_ |= BitOf(kind);
  }

  constexpr bool Contains(OperationKind kind) const { return (bits_ & BitOf(kind)) != 0; }

 private:
  // 0: it is no kind.
  static constexpr uint64_t BitOf(OperationKind kind) {
    return IsOperationKind(kind) ? uint64_t{1} << static_cast<unsigned>(kind) : 0;
  }

  uint64_t bits_ = 0;
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_OPERATION_KIND_H_
