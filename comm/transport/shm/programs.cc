#include "comm/transport/shm/programs.h"

#include "comm/transport/operation_check.h"
#include "core/base/status.h"

namespace pelton::shm {

absl::StatusOr<Completion> ProgramMessages::Launch(const Operation& operation, Stream& stream) {
  if (!completions_.has_room()) return absl::ResourceExhaustedError("as many as there may be");
  ASSIGN_OR_RETURN(
      const OperationMemory memory,
      ResolveOperation(operation, Rank(context_.rank), WorldSize(context_.world_size())));
  Operation reachable = operation;
  reachable.set_source(context_.Reachable(operation.source(), memory.source));
  reachable.set_target(context_.Reachable(operation.target(), memory.target));
  const bool sends = operation.kind == OperationKind::kSend;
  const absl::Status started =
      point_to_point_.Start(reachable, (completions_.launched() + 1) | kIsMessageOfProgram,
                            sends ? memory.source : memory.target);
  // A program tries again where there is no room for an operation, which a lack of memory is not.
  if (absl::IsResourceExhausted(started)) return absl::InternalError(started.message());
  RETURN_IF_ERROR(started);
  return completions_.Begin().completion;
}

absl::StatusOr<ProgramCache::Pointer> Programs::Find(const Operation& operation) {
  return cache_.Get(ShapeOf(operation, Rank(context_.rank), WorldSize(context_.world_size())));
}

absl::Status Programs::Check(const Operation& operation) { return Find(operation).status(); }

absl::Status Programs::Start(const Operation& operation, std::byte* source, std::byte* target) {
  ASSIGN_OR_RETURN(program_, Find(operation));
  ProgramBinding binding;
  binding.source = source;
  binding.target = target;
  binding.dtype = operation.dtype;
  binding.reduce_op = operation.reduce_op;
  binding.divisor = context_.world_size();
  binding.tag = kFirstTransportProgramTag;
  binding.kind = operation.kind;
  binding.bucket = operation.bucket;
  return run_.Start(*program_, binding);
}

// Ranks that launched the same operation run the same recipe, so that a message that differs from
// the one it meets is no error of the user's, after which the communicator would go on.
absl::StatusOr<bool> Programs::Advance() {
  absl::StatusOr<bool> done = run_.Advance();
  if (absl::IsInvalidArgument(done.status())) return absl::InternalError(done.status().message());
  return done;
}

}  // namespace pelton::shm
