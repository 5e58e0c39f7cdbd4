// NCCL's C interface over world.h.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "comm/transport/nccl/stand_in/controls.h"
#include "comm/transport/nccl/stand_in/meeting.h"
#include "comm/transport/nccl/stand_in/world.h"

using pelton::DType;
using pelton::Operation;
using pelton::OperationKind;
using pelton::ReduceOp;
using pelton::stand_in::Controls;

namespace {

constexpr int kOk = 0;
constexpr int kInvalidArgument = 4;
constexpr int kInProgress = 7;
constexpr unsigned kConfigMagic = 0xcafebeef;
// Of ranks that are processes. Less than a test may take, so that it can say what is missing.
constexpr absl::Duration kPatience = absl::Seconds(60);

struct UniqueId {
  char bytes[128];
};

struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

// What a thread has put into its group. Threads: one. Owns: its operations.
struct Group {
  int depth = 0;
  std::vector<Operation> operations;
  ncclComm* comm = nullptr;
  CUstream_st* stream = nullptr;
};
thread_local Group group;

bool RanksAreProcesses() {
  const char* text = std::getenv("PELTON_STAND_IN_PROCESSES");
  return text != nullptr && absl::string_view(text) == "1";
}

// Either kind of name is shorter than the id, whose rest is zeros.
std::string NewName() {
  static std::atomic<uint64_t> next = 1;
  if (RanksAreProcesses()) return pelton::stand_in::NewPlaceName();
  return "thread-" + std::to_string(next.fetch_add(1));
}

// The id says what its ranks are, so that all of them agree.
std::unique_ptr<pelton::stand_in::Arrival> ArrivalAt(const std::string& name, int rank,
                                                     int rank_count) {
  if (pelton::stand_in::IsPlaceName(name)) {
    return std::make_unique<pelton::stand_in::ProcessArrival>(
        pelton::stand_in::Place{name, rank, rank_count}, kPatience);
  }
  return std::make_unique<pelton::stand_in::ThreadArrival>(
      pelton::stand_in::World::Of(name, rank_count), rank);
}

std::optional<DType> TypeOf(int type) {
  switch (type) {
    case 0:
      return DType::kInt8;
    case 1:
      return DType::kUInt8;
    case 2:
      return DType::kInt32;
    case 4:
      return DType::kInt64;
    case 6:
      return DType::kFloat16;
    case 7:
      return DType::kFloat32;
    case 8:
      return DType::kFloat64;
    case 9:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> OpOf(int op) {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin,
                               ReduceOp::kAvg};
  if (op < 0 || op > 4) return std::nullopt;
  return kOps[op];
}

// The arguments that NCCL's functions have in common. Threads: a value. Owns: nothing.
struct Arguments {
  OperationKind kind;
  const void* source;
  void* target;
  size_t count;
  int type;
  int op = 0;
  int peer = 0;
};

int Enqueue(const char* call, const Arguments& arguments, ncclComm* comm, CUstream_st* stream) {
  if (const int fault = Controls::Get().FaultOf(call)) return fault;
  const std::optional<DType> dtype = TypeOf(arguments.type);
  const std::optional<ReduceOp> op = OpOf(arguments.op);
  if (!dtype.has_value() || !op.has_value()) return kInvalidArgument;
  Operation operation;
  operation.kind = arguments.kind;
  operation.dtype = *dtype;
  operation.reduce_op = *op;
  operation.count = arguments.count;
  operation.peer = arguments.peer;
  operation.source_offset = reinterpret_cast<uintptr_t>(arguments.source);
  operation.target_offset = reinterpret_cast<uintptr_t>(arguments.target);
  if (group.depth == 0) return comm->Enqueue({operation}, stream);
  group.operations.push_back(operation);
  group.comm = comm;
  group.stream = stream;
  return kOk;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = Controls::Get().version();
  return kOk;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case 1:
      return "unhandled cuda error";
    case 2:
      return "unhandled system error";
    case kInvalidArgument:
      return "invalid argument";
    case 5:
      return "invalid usage";
    case 6:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm* comm) {
  return comm == nullptr ? "said by the stand-in" : comm->last_error();
}

int ncclGetUniqueId(UniqueId* id) {
  if (const int fault = Controls::Get().FaultOf("ncclGetUniqueId")) return fault;
  const std::string name = NewName();
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::memcpy(id->bytes, name.data(), name.size());
  return kOk;
}

int ncclCommInitRankConfig(ncclComm** comm, int rank_count, UniqueId id, int rank, Config* config) {
  if (const int fault = Controls::Get().FaultOf("ncclCommInitRankConfig")) return fault;
  const bool known = config->magic == kConfigMagic && config->version >= 21400;
  if (!known || config->blocking != 0 || rank < 0 || rank >= rank_count) return kInvalidArgument;
  const std::string name(id.bytes, strnlen(id.bytes, sizeof id.bytes));
  *comm = new ncclComm(ArrivalAt(name, rank, rank_count), rank);
  return kInProgress;
}

int ncclCommGetAsyncError(ncclComm* comm, int* result) {
  if (const int fault = Controls::Get().FaultOf("ncclCommGetAsyncError")) return fault;
  *result = comm->Poll();
  return kOk;
}

int ncclCommFinalize(ncclComm* comm) {
  if (const int fault = Controls::Get().FaultOf("ncclCommFinalize")) return fault;
  return comm->Finalize();
}

int ncclCommDestroy(ncclComm* comm) {
  comm->AwaitOthersEnd();
  delete comm;
  return kOk;
}

int ncclCommAbort(ncclComm* comm) {
  comm->Abort();
  comm->AwaitOthersEnd();
  delete comm;
  return kOk;
}

int ncclCommRegister(ncclComm* comm, void* memory, size_t size_bytes, void** registration) {
  if (const int fault = Controls::Get().FaultOf("ncclCommRegister")) return fault;
  if (memory == nullptr || size_bytes == 0) return kInvalidArgument;
  *registration = memory;
  comm->Register();
  return kOk;
}

int ncclCommDeregister(ncclComm* comm, void*) {
  comm->Deregister();
  return kOk;
}

int ncclGroupStart() {
  if (const int fault = Controls::Get().FaultOf("ncclGroupStart")) return fault;
  ++group.depth;
  return kOk;
}

int ncclGroupEnd() {
  if (group.depth == 0 || --group.depth > 0) return kOk;
  const Group ended = std::exchange(group, Group{});
  if (const int fault = Controls::Get().FaultOf("ncclGroupEnd")) return fault;
  if (ended.comm == nullptr) return kOk;
  return ended.comm->Enqueue(ended.operations, ended.stream);
}

int ncclAllReduce(const void* source, void* target, size_t count, int type, int op, ncclComm* comm,
                  CUstream_st* stream) {
  return Enqueue("ncclAllReduce", {OperationKind::kAllReduce, source, target, count, type, op},
                 comm, stream);
}

int ncclReduce(const void* source, void* target, size_t count, int type, int op, int root,
               ncclComm* comm, CUstream_st* stream) {
  return Enqueue("ncclReduce", {OperationKind::kReduce, source, target, count, type, op, root},
                 comm, stream);
}

int ncclReduceScatter(const void* source, void* target, size_t count, int type, int op,
                      ncclComm* comm, CUstream_st* stream) {
  return Enqueue("ncclReduceScatter",
                 {OperationKind::kReduceScatter, source, target, count, type, op}, comm, stream);
}

int ncclAllGather(const void* source, void* target, size_t count, int type, ncclComm* comm,
                  CUstream_st* stream) {
  return Enqueue("ncclAllGather", {OperationKind::kAllGather, source, target, count, type}, comm,
                 stream);
}

int ncclBroadcast(const void* source, void* target, size_t count, int type, int root,
                  ncclComm* comm, CUstream_st* stream) {
  return Enqueue("ncclBroadcast", {OperationKind::kBroadcast, source, target, count, type, 0, root},
                 comm, stream);
}

int ncclSend(const void* source, size_t count, int type, int peer, ncclComm* comm,
             CUstream_st* stream) {
  return Enqueue("ncclSend", {OperationKind::kSend, source, nullptr, count, type, 0, peer}, comm,
                 stream);
}

int ncclRecv(void* target, size_t count, int type, int peer, ncclComm* comm, CUstream_st* stream) {
  return Enqueue("ncclRecv", {OperationKind::kRecv, nullptr, target, count, type, 0, peer}, comm,
                 stream);
}
}
