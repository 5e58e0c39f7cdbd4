#include "comm/transport/sim/outcome.h"

#include <algorithm>
#include <cstring>

#include "comm/reduction/reference.h"
#include "core/base/check.h"

namespace pelton {
namespace {

uint64_t BytesOf(const Operation& operation) { return operation.count * SizeOf(operation.dtype); }

void Append(std::vector<std::byte>& bytes, const std::byte* from, uint64_t size_bytes) {
  bytes.insert(bytes.end(), from, from + size_bytes);
}

// The reduction of `count` elements from `offset_bytes` on of every source.
void AppendReduction(std::vector<std::byte>& bytes, absl::Span<const Part> parts,
                     uint64_t offset_bytes) {
  const Operation& operation = *parts[0].operation;
  if (operation.count == 0) return;
  std::vector<const std::byte*> sources;
  for (const Part& part : parts) sources.push_back(part.source + offset_bytes);
  const size_t begin = bytes.size();
  bytes.resize(begin + BytesOf(operation));
  PELTON_CHECK_OK(ReferenceReduce(sources, bytes.data() + begin, operation.count, operation.dtype,
                                  operation.reduce_op));
}

Outcome AllToAll(absl::Span<const Part> parts, uint64_t chunk_bytes) {
  Outcome outcome{{}, chunk_bytes * parts.size()};
  for (size_t receiver = 0; receiver < parts.size(); ++receiver) {
    for (const Part& sender : parts) {
      Append(outcome.bytes, sender.source + receiver * chunk_bytes, chunk_bytes);
    }
  }
  return outcome;
}

// The flat recipe of an allreduce: everybody sends each rank its slice, which that rank reduces
// and sends to everybody.
std::vector<absl::Time> AllReduceTimes(const Operation& operation, absl::Span<const Rank> members,
                                       absl::Time now, Network& network) {
  const size_t n = members.size();
  auto slice_bytes = [&](size_t rank) {
    return (operation.count * (rank + 1) / n - operation.count * rank / n) *
           SizeOf(operation.dtype);
  };
  std::vector<absl::Time> reduced(n, now);
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const auto times = network.Transfer({members[from], members[to]}, slice_bytes(to), now);
      reduced[to] = std::max(reduced[to], times.arrived);
    }
  }
  std::vector<absl::Time> done = reduced;
  for (size_t from = 0; from < n; ++from) {
    for (size_t to = 0; to < n; ++to) {
      const auto times =
          network.Transfer({members[from], members[to]}, slice_bytes(from), reduced[from]);
      done[from] = std::max(done[from], times.left);
      done[to] = std::max(done[to], times.arrived);
    }
  }
  return done;
}

// Whether `from` sends to `to` in a one-step recipe.
bool Sends(const Operation& operation, size_t from, size_t to) {
  const auto root = static_cast<size_t>(operation.peer);
  switch (operation.kind) {
    case OperationKind::kReduce:
    case OperationKind::kGather:
      return to == root;
    case OperationKind::kBroadcast:
    case OperationKind::kScatter:
      return from == root;
    default:
      return true;
  }
}

}  // namespace

Outcome RunCollective(absl::Span<const Part> parts) {
  const Operation& operation = *parts[0].operation;
  const uint64_t chunk_bytes = BytesOf(operation);
  Outcome outcome;
  if (chunk_bytes == 0) return outcome;
  switch (operation.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduce:
      AppendReduction(outcome.bytes, parts, 0);
      break;
    case OperationKind::kReduceScatter:
      outcome.stride_bytes = chunk_bytes;
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        AppendReduction(outcome.bytes, parts, rank * chunk_bytes);
      }
      break;
    case OperationKind::kAllGather:
    case OperationKind::kGather:
      for (const Part& part : parts) Append(outcome.bytes, part.source, chunk_bytes);
      break;
    case OperationKind::kBroadcast:
      Append(outcome.bytes, parts[static_cast<size_t>(operation.peer)].source, chunk_bytes);
      break;
    case OperationKind::kScatter:
      outcome.stride_bytes = chunk_bytes;
      Append(outcome.bytes, parts[static_cast<size_t>(operation.peer)].source,
             chunk_bytes * parts.size());
      break;
    case OperationKind::kAllToAll:
      return AllToAll(parts, chunk_bytes);
    default:
      break;  // a barrier carries nothing
  }
  return outcome;
}

std::vector<absl::Time> CompletionTimes(const Operation& operation, absl::Span<const Rank> members,
                                        absl::Time now, Network& network) {
  if (operation.kind == OperationKind::kAllReduce) {
    return AllReduceTimes(operation, members, now, network);
  }
  const uint64_t bytes = operation.kind == OperationKind::kBarrier ? 0 : BytesOf(operation);
  std::vector<absl::Time> done(members.size(), now);
  for (size_t from = 0; from < members.size(); ++from) {
    for (size_t to = 0; to < members.size(); ++to) {
      if (!Sends(operation, from, to)) continue;
      const auto times = network.Transfer({members[from], members[to]}, bytes, now);
      done[from] = std::max(done[from], times.left);
      done[to] = std::max(done[to], times.arrived);
    }
  }
  return done;
}

}  // namespace pelton
