#include "backend/c/pelton.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "algorithms/algorithm.h"
#include "backend/backend.h"
#include "backend/environment.h"
#include "backend/model.h"
#include "backend/watched_communicator.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/control/coordinator_server.h"
#include "comm/group.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/memory/dtype.h"
#include "core/pipeline/operation.h"
#include "core/plan/plan.h"
#include "core/round/model_rounds.h"
#include "core/round/schedule.h"

// The handles are these types' addresses.

// Threads: a value. Owns: its text.
struct PeltonStatus {
  PeltonCode code;
  std::string text;
};

// Threads: any. Owns: the server.
struct PeltonCoordinator {
  std::unique_ptr<pelton::CoordinatorServer> server;
  std::string address;
};

// Threads: any. Owns: the backend.
struct PeltonBackend {
  std::unique_ptr<pelton::Backend> backend;
};

// Threads: one at a time. Owns: the communicator.
struct PeltonCommunicator {
  std::unique_ptr<pelton::WatchedCommunicator> communicator;
};

// Threads: one at a time. Owns: the model; the tensors' memory is the caller's.
struct PeltonBuckets {
  std::unique_ptr<pelton::Model> model;
  std::vector<void*> tensors;
  std::vector<bool> is_marked;  // in the open round

  pelton::ModelRounds& rounds() const { return model->rounds(); }
};

namespace pelton {
namespace {

static_assert(PELTON_INT64 == static_cast<int>(DType::kInt64));
static_assert(PELTON_AVG == static_cast<int>(ReduceOp::kAvg));
static_assert(PELTON_UNAUTHENTICATED == static_cast<int>(absl::StatusCode::kUnauthenticated));

PeltonStatus* ToC(const absl::Status& status) {
  if (status.ok()) return nullptr;
  return new PeltonStatus{static_cast<PeltonCode>(status.code()), std::string(status.message())};
}

absl::Status CheckGiven(const void* argument, absl::string_view name) {
  if (argument != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, ": is NULL; pass a valid pointer"));
}

// Errors: InvalidArgument: it is below 0 or no number.
absl::StatusOr<absl::Duration> TimeoutOf(double seconds, absl::string_view name) {
  if (seconds >= 0) return absl::Seconds(seconds);
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": ", seconds, " s, must be a number of seconds from 0 on"));
}

absl::StatusOr<DType> DTypeOf(const PeltonTensor& tensor) {
  if (tensor.dtype >= PELTON_FLOAT32 && tensor.dtype <= PELTON_INT64) {
    return static_cast<DType>(tensor.dtype);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tensor.dtype: ", static_cast<int>(tensor.dtype),
                   " is no PeltonDType; take a constant of pelton.h"));
}

absl::StatusOr<Tensor> TensorOf(const PeltonTensor* tensor, absl::string_view name) {
  RETURN_IF_ERROR(CheckGiven(tensor, name));
  if (tensor->count > 0) RETURN_IF_ERROR(CheckGiven(tensor->data, absl::StrCat(name, ".data")));
  ASSIGN_OR_RETURN(const DType dtype, DTypeOf(*tensor));
  return Tensor{tensor->data, tensor->count, dtype};
}

absl::StatusOr<ReduceOp> ReduceOpOf(PeltonReduceOp op) {
  for (PeltonReduceOp one : {PELTON_SUM, PELTON_PRODUCT, PELTON_MIN, PELTON_MAX, PELTON_AVG}) {
    if (op == one) return static_cast<ReduceOp>(op);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "op: ", static_cast<int>(op), " is no PeltonReduceOp; take a constant of pelton.h"));
}

absl::StatusOr<BackendOptions> OptionsOf(const PeltonBackendOptions* given) {
  RETURN_IF_ERROR(CheckGiven(given, "options"));
  RETURN_IF_ERROR(CheckGiven(given->coordinator, "options.coordinator"));
  BackendOptions options;
  options.rank = Rank(given->rank);
  options.world_size = WorldSize(given->world_size);
  options.coordinator_address = given->coordinator;
  if (given->token != nullptr) options.token = given->token;
  ASSIGN_OR_RETURN(const absl::Duration operation,
                   TimeoutOf(given->operation_timeout_s, "options.operation_timeout_s"));
  ASSIGN_OR_RETURN(const absl::Duration join,
                   TimeoutOf(given->join_timeout_s, "options.join_timeout_s"));
  if (operation > absl::ZeroDuration()) options.operation_timeout = operation;
  if (join > absl::ZeroDuration()) options.join_timeout = join;
  return options;
}

absl::Status Start(const absl::StatusOr<BackendOptions>& options, PeltonBackend** backend) {
  RETURN_IF_ERROR(CheckGiven(backend, "backend"));
  RETURN_IF_ERROR(options.status());
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> started, Backend::Start(*options));
  *backend = new PeltonBackend{std::move(started)};
  return absl::OkStatus();
}

absl::Status Open(PeltonBackend* backend, const int32_t* ranks, size_t count,
                  PeltonCommunicator** communicator) {
  RETURN_IF_ERROR(CheckGiven(backend, "backend"));
  RETURN_IF_ERROR(CheckGiven(communicator, "communicator"));
  const Group group = ranks == nullptr ? Group::World(backend->backend->world_size())
                                       : Group::Of(absl::MakeConstSpan(ranks, count));
  RETURN_IF_ERROR(CheckGroup(group, backend->backend->world_size(), backend->backend->rank()));
  ASSIGN_OR_RETURN(auto opened, backend->backend->Open(group));
  *communicator = new PeltonCommunicator{std::move(opened)};
  return absl::OkStatus();
}

// Starts what `launch` makes of the communicator, and gives its ticket.
template <typename Launch>
PeltonStatus* Started(PeltonCommunicator* communicator, PeltonOperation* operation, Launch launch) {
  absl::Status given = CheckGiven(communicator, "communicator");
  if (given.ok()) given = CheckGiven(operation, "operation");
  if (!given.ok()) return ToC(given);
  const absl::StatusOr<Completion> completion = launch(*communicator->communicator);
  if (completion.ok()) *operation = completion->ticket;
  return ToC(completion.status());
}

absl::StatusOr<std::vector<TensorSpec>> SpecsOf(const PeltonTensor* tensors, size_t count) {
  if (count > 0) RETURN_IF_ERROR(CheckGiven(tensors, "tensors"));
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < count; ++i) {
    const std::string name = absl::StrCat("tensors[", i, "]");
    ASSIGN_OR_RETURN(const Tensor tensor, TensorOf(&tensors[i], name));
    RETURN_IF_ERROR(CheckGiven(tensors[i].name, absl::StrCat(name, ".name")));
    TensorSpec& spec = specs.emplace_back();
    spec.name = tensors[i].name;
    spec.dtype = tensor.dtype;
    spec.count = tensor.count;
  }
  return specs;
}

absl::StatusOr<ModelOptions> OptionsOf(const Backend& backend, const PeltonBucketsOptions* given,
                                       size_t tensors) {
  RETURN_IF_ERROR(CheckGiven(given, "options"));
  RETURN_IF_ERROR(CheckGiven(given->name, "options.name"));
  ModelOptions options;
  options.name = given->name;
  options.group = Group::World(backend.world_size());
  if (given->algorithm != nullptr) options.algorithm = given->algorithm;
  if (given->bucket_size_bytes > 0) options.bucket_size_bytes = given->bucket_size_bytes;
  if (given->bucket_of != nullptr) {
    options.buckets.assign(given->bucket_of, given->bucket_of + tensors);
  }
  return options;
}

absl::Status Make(PeltonBackend* backend, const PeltonBucketsOptions* given,
                  const PeltonTensor* tensors, size_t count, PeltonBuckets** buckets) {
  RETURN_IF_ERROR(CheckGiven(backend, "backend"));
  RETURN_IF_ERROR(CheckGiven(buckets, "buckets"));
  ASSIGN_OR_RETURN(const ModelOptions options, OptionsOf(*backend->backend, given, count));
  ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, SpecsOf(tensors, count));
  ASSIGN_OR_RETURN(auto algorithm, MakeAlgorithm(options.algorithm, options.algorithm_options));
  const TriggerKind trigger = algorithm->schedule().trigger;
  if (trigger != TriggerKind::kWhenReady) {
    return absl::UnimplementedError(absl::StrCat(
        "options.algorithm: ", options.algorithm, " communicates ", NameOf(trigger),
        " and not when tensors are ready; buckets in C take gradient algorithms only"));
  }
  auto made = std::make_unique<PeltonBuckets>();
  for (size_t i = 0; i < count; ++i) made->tensors.push_back(tensors[i].data);
  made->is_marked.assign(count, false);
  ASSIGN_OR_RETURN(made->model, Model::Create(*backend->backend, options, std::move(algorithm),
                                              std::move(specs)));
  *buckets = made.release();
  return absl::OkStatus();
}

absl::StatusOr<SlotId> SlotOf(const PeltonBuckets* buckets, size_t tensor) {
  RETURN_IF_ERROR(CheckGiven(buckets, "buckets"));
  if (tensor < buckets->tensors.size()) return SlotId(static_cast<int32_t>(tensor));
  return absl::InvalidArgumentError(
      absl::StrCat("tensor: ", tensor, ", must be below ", buckets->tensors.size()));
}

absl::Status MarkReady(PeltonBuckets* buckets, size_t tensor) {
  ASSIGN_OR_RETURN(const SlotId slot, SlotOf(buckets, tensor));
  ModelRounds& rounds = buckets->rounds();
  const uint64_t size_bytes = rounds.plan().tensor(slot).size_bytes();
  // What is marked already is the bucket's (OWN-1), and refused below.
  if (!buckets->is_marked[tensor] && size_bytes > 0) {
    std::memcpy(rounds.DataOf(slot), buckets->tensors[tensor], size_bytes);
  }
  buckets->is_marked[tensor] = true;
  return rounds.MarkReady(slot);
}

absl::Status Wait(PeltonBuckets* buckets, double timeout_s) {
  RETURN_IF_ERROR(CheckGiven(buckets, "buckets"));
  ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutOf(timeout_s, "timeout_s"));
  ModelRounds& rounds = buckets->rounds();
  RETURN_IF_ERROR(rounds.EndRound());
  const absl::Status ended = rounds.WaitRound(Clock::Real().Now() + timeout);
  buckets->is_marked.assign(buckets->tensors.size(), false);  // the next round is open in any case
  RETURN_IF_ERROR(ended);
  for (size_t i = 0; i < buckets->tensors.size(); ++i) {
    const SlotResult result = rounds.ResultOf(SlotId(static_cast<int32_t>(i)));
    if (!result.used_by_any || result.size_bytes == 0) continue;
    std::memcpy(buckets->tensors[i], result.data, result.size_bytes);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace pelton

PeltonCode PeltonStatusCode(const PeltonStatus* status) {
  return status == nullptr ? PELTON_OK : status->code;
}

const char* PeltonStatusText(const PeltonStatus* status) {
  return status == nullptr ? "" : status->text.c_str();
}

void PeltonStatusFree(PeltonStatus* status) { delete status; }

PeltonStatus* PeltonCoordinatorServe(const char* address, const char* token,
                                     PeltonCoordinator** coordinator) {
  absl::Status given = pelton::CheckGiven(address, "address");
  if (given.ok()) given = pelton::CheckGiven(token, "token");
  if (given.ok()) given = pelton::CheckGiven(coordinator, "coordinator");
  if (!given.ok()) return pelton::ToC(given);
  auto server = pelton::ServeCoordinatorAt(address, token);
  if (!server.ok()) return pelton::ToC(server.status());
  const std::string served_at = (*server)->address();
  *coordinator = new PeltonCoordinator{*std::move(server), served_at};
  return nullptr;
}

const char* PeltonCoordinatorAddress(const PeltonCoordinator* coordinator) {
  return coordinator->address.c_str();
}

void PeltonCoordinatorFree(PeltonCoordinator* coordinator) { delete coordinator; }

PeltonStatus* PeltonBackendStart(const PeltonBackendOptions* options, PeltonBackend** backend) {
  return pelton::ToC(pelton::Start(pelton::OptionsOf(options), backend));
}

PeltonStatus* PeltonBackendStartFromEnvironment(PeltonBackend** backend) {
  return pelton::ToC(pelton::Start(pelton::OptionsFromEnvironment(), backend));
}

int32_t PeltonBackendRank(const PeltonBackend* backend) { return backend->backend->rank().value(); }

int32_t PeltonBackendWorldSize(const PeltonBackend* backend) {
  return backend->backend->world_size().value();
}

void PeltonBackendFree(PeltonBackend* backend) { delete backend; }

PeltonStatus* PeltonCommunicatorOpen(PeltonBackend* backend, const int32_t* ranks, size_t count,
                                     PeltonCommunicator** communicator) {
  return pelton::ToC(pelton::Open(backend, ranks, count, communicator));
}

int32_t PeltonCommunicatorRank(const PeltonCommunicator* communicator) {
  return communicator->communicator->rank().value();
}

int32_t PeltonCommunicatorSize(const PeltonCommunicator* communicator) {
  return communicator->communicator->world_size().value();
}

void PeltonCommunicatorFree(PeltonCommunicator* communicator) { delete communicator; }

PeltonStatus* PeltonAllReduce(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                              PeltonReduceOp op, PeltonOperation* operation) {
  using Result = absl::StatusOr<pelton::Completion>;
  return pelton::Started(communicator, operation, [&](pelton::Communicator& among) -> Result {
    ASSIGN_OR_RETURN(const pelton::Tensor own, pelton::TensorOf(tensor, "tensor"));
    ASSIGN_OR_RETURN(const pelton::ReduceOp reduction, pelton::ReduceOpOf(op));
    return pelton::AllReduce(among, own, own, reduction);
  });
}

PeltonStatus* PeltonBroadcast(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                              int32_t root, PeltonOperation* operation) {
  using Result = absl::StatusOr<pelton::Completion>;
  return pelton::Started(communicator, operation, [&](pelton::Communicator& among) -> Result {
    ASSIGN_OR_RETURN(const pelton::Tensor own, pelton::TensorOf(tensor, "tensor"));
    return pelton::Broadcast(among, own, pelton::Rank(root));
  });
}

PeltonStatus* PeltonAllGather(PeltonCommunicator* communicator, const PeltonTensor* source,
                              const PeltonTensor* target, PeltonOperation* operation) {
  using Result = absl::StatusOr<pelton::Completion>;
  return pelton::Started(communicator, operation, [&](pelton::Communicator& among) -> Result {
    ASSIGN_OR_RETURN(const pelton::Tensor own, pelton::TensorOf(source, "source"));
    ASSIGN_OR_RETURN(const pelton::Tensor all, pelton::TensorOf(target, "target"));
    return pelton::AllGather(among, own, all);
  });
}

PeltonStatus* PeltonSend(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                         int32_t destination, PeltonOperation* operation) {
  using Result = absl::StatusOr<pelton::Completion>;
  return pelton::Started(communicator, operation, [&](pelton::Communicator& among) -> Result {
    ASSIGN_OR_RETURN(const pelton::Tensor own, pelton::TensorOf(tensor, "tensor"));
    return pelton::Send(among, own, pelton::Rank(destination));
  });
}

PeltonStatus* PeltonRecv(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                         int32_t source, PeltonOperation* operation) {
  using Result = absl::StatusOr<pelton::Completion>;
  return pelton::Started(communicator, operation, [&](pelton::Communicator& among) -> Result {
    ASSIGN_OR_RETURN(const pelton::Tensor own, pelton::TensorOf(tensor, "tensor"));
    return pelton::Recv(among, own, pelton::Rank(source));
  });
}

PeltonStatus* PeltonBarrier(PeltonCommunicator* communicator, PeltonOperation* operation) {
  return pelton::Started(communicator, operation,
                         [](pelton::Communicator& among) { return pelton::Barrier(among); });
}

PeltonStatus* PeltonCommunicatorWait(PeltonCommunicator* communicator, PeltonOperation operation,
                                     double timeout_s) {
  if (absl::Status given = pelton::CheckGiven(communicator, "communicator"); !given.ok()) {
    return pelton::ToC(given);
  }
  const absl::StatusOr<absl::Duration> timeout = pelton::TimeoutOf(timeout_s, "timeout_s");
  if (!timeout.ok()) return pelton::ToC(timeout.status());
  return pelton::ToC(pelton::Await(*communicator->communicator, pelton::Completion{operation},
                                   pelton::Clock::Real().Now() + *timeout));
}

PeltonStatus* PeltonBucketsMake(PeltonBackend* backend, const PeltonBucketsOptions* options,
                                const PeltonTensor* tensors, size_t count,
                                PeltonBuckets** buckets) {
  return pelton::ToC(pelton::Make(backend, options, tensors, count, buckets));
}

size_t PeltonBucketsCount(const PeltonBuckets* buckets) {
  return buckets->rounds().plan().buckets().size();
}

PeltonStatus* PeltonBucketsOf(const PeltonBuckets* buckets, size_t tensor, int32_t* bucket) {
  const absl::StatusOr<pelton::SlotId> slot = pelton::SlotOf(buckets, tensor);
  if (!slot.ok()) return pelton::ToC(slot.status());
  if (absl::Status given = pelton::CheckGiven(bucket, "bucket"); !given.ok()) {
    return pelton::ToC(given);
  }
  *bucket = buckets->rounds().plan().slot(*slot).bucket.value();
  return nullptr;
}

PeltonStatus* PeltonBucketsMarkReady(PeltonBuckets* buckets, size_t tensor) {
  return pelton::ToC(pelton::MarkReady(buckets, tensor));
}

PeltonStatus* PeltonBucketsWait(PeltonBuckets* buckets, double timeout_s) {
  return pelton::ToC(pelton::Wait(buckets, timeout_s));
}

void PeltonBucketsFree(PeltonBuckets* buckets) { delete buckets; }
