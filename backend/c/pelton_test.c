/* Two ranks in C, as threads: every part of the interface, and each kind of error. */
#include "backend/c/pelton.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRanks = 2, kCount = 1000 };
static const char kToken[] = "a-token-of-sixteen-bytes-or-more";
static const double kPatience = 30;

static void Fail(int line, const char* what, const char* text) {
  fprintf(stderr, "pelton_test.c:%d: %s: %s\n", line, what, text);
  exit(1);
}

#define CHECK(condition) \
  if (!(condition)) Fail(__LINE__, "not so", #condition)

static void CheckOk(int line, PeltonStatus* status) {
  if (status != NULL) Fail(line, "an error", PeltonStatusText(status));
}
#define CHECK_OK(call) CheckOk(__LINE__, call)

static void CheckError(int line, PeltonStatus* status, PeltonCode code, const char* text) {
  if (status == NULL) Fail(line, "no error with", text);
  if (PeltonStatusCode(status) != code || strstr(PeltonStatusText(status), text) == NULL) {
    Fail(line, "another error", PeltonStatusText(status));
  }
  PeltonStatusFree(status);
}
#define CHECK_ERROR(call, code, text) CheckError(__LINE__, call, code, text)

typedef struct Rank {
  int32_t rank;
  const char* coordinator;
} Rank;

static PeltonBackend* Joined(const Rank* rank) {
  PeltonBackendOptions options = {0};
  PeltonBackend* backend = NULL;
  options.rank = rank->rank;
  options.world_size = kRanks;
  options.coordinator = rank->coordinator;
  options.token = kToken;
  options.join_timeout_s = options.operation_timeout_s = kPatience;
  CHECK_OK(PeltonBackendStart(&options, &backend));
  CHECK(PeltonBackendRank(backend) == rank->rank);
  CHECK(PeltonBackendWorldSize(backend) == kRanks);
  return backend;
}

static void Finish(PeltonCommunicator* communicator, PeltonOperation operation) {
  CHECK_OK(PeltonCommunicatorWait(communicator, operation, kPatience));
}

static PeltonTensor TensorOf(const char* name, float* data, uint64_t count) {
  PeltonTensor tensor = {NULL, NULL, 0, PELTON_FLOAT32};
  tensor.name = name;
  tensor.data = data;
  tensor.count = count;
  return tensor;
}

static void Fill(float* data, size_t count, float value) {
  size_t i;
  for (i = 0; i < count; ++i) data[i] = value;
}

static void RunCollectives(PeltonCommunicator* communicator) {
  const int32_t rank = PeltonCommunicatorRank(communicator);
  float own[kCount], all[kRanks * kCount];
  const PeltonTensor source = TensorOf(NULL, own, kCount);
  const PeltonTensor target = TensorOf(NULL, all, kRanks * kCount);
  PeltonOperation first, second;
  CHECK(PeltonCommunicatorSize(communicator) == kRanks);
  Fill(own, kCount, (float)rank + 1);
  CHECK_OK(PeltonAllReduce(communicator, &source, PELTON_SUM, &first));
  Finish(communicator, first);
  CHECK(own[0] == 3 && own[kCount - 1] == 3);
  Fill(own, kCount, (float)rank);
  CHECK_OK(PeltonAllGather(communicator, &source, &target, &first));
  CHECK_OK(PeltonBarrier(communicator, &second));
  Finish(communicator, second);
  Finish(communicator, first);
  CHECK(all[0] == 0 && all[kCount] == 1 && all[2 * kCount - 1] == 1);
  CHECK_OK(PeltonBroadcast(communicator, &source, 1, &first));
  Finish(communicator, first);
  CHECK(own[kCount - 1] == 1);
  Fill(own, kCount, (float)(10 * rank));
  CHECK_OK(rank == 0 ? PeltonRecv(communicator, &source, 1, &first)
                     : PeltonSend(communicator, &source, 0, &first));
  Finish(communicator, first);
  CHECK(own[kCount - 1] == 10);
}

static void RunRefusals(PeltonBackend* backend, PeltonCommunicator* communicator) {
  float value = 0;
  PeltonTensor tensor = TensorOf(NULL, &value, 1);
  PeltonOperation operation;
  const int32_t twice[] = {0, 0};
  PeltonCommunicator* other = NULL;
  CHECK_ERROR(PeltonAllReduce(communicator, NULL, PELTON_SUM, &operation), PELTON_INVALID_ARGUMENT,
              "tensor: is NULL");
  CHECK_ERROR(PeltonAllReduce(communicator, &tensor, (PeltonReduceOp)77, &operation),
              PELTON_INVALID_ARGUMENT, "op: 77");
  CHECK_ERROR(PeltonBroadcast(communicator, &tensor, 5, &operation), PELTON_INVALID_ARGUMENT, "5");
  tensor.dtype = (PeltonDType)99;
  CHECK_ERROR(PeltonAllReduce(communicator, &tensor, PELTON_SUM, &operation),
              PELTON_INVALID_ARGUMENT, "tensor.dtype: 99");
  CHECK_ERROR(PeltonCommunicatorWait(communicator, 1, -1), PELTON_INVALID_ARGUMENT, "timeout_s");
  CHECK_ERROR(PeltonCommunicatorOpen(backend, twice, 2, &other), PELTON_INVALID_ARGUMENT, "0");
  CHECK(other == NULL);
}

/* Rank 1 never starts the operation that rank 0 waits for. */
static void RunDeadline(PeltonCommunicator* communicator) {
  float value = 0;
  const PeltonTensor tensor = TensorOf(NULL, &value, 1);
  PeltonOperation operation;
  if (PeltonCommunicatorRank(communicator) != 0) return;
  CHECK_OK(PeltonAllReduce(communicator, &tensor, PELTON_SUM, &operation));
  CHECK_ERROR(PeltonCommunicatorWait(communicator, operation, 0.2), PELTON_DEADLINE_EXCEEDED,
              "waiting for rank(s) 1");
}

static PeltonBuckets* MadeOf(PeltonBackend* backend, PeltonTensor* tensors, size_t count) {
  const int32_t bucket_of[] = {1, 0, 0};
  PeltonBucketsOptions options = {"net", NULL, 0, NULL};
  PeltonBuckets* buckets = NULL;
  int32_t bucket = -1;
  options.bucket_of = bucket_of;
  CHECK_OK(PeltonBucketsMake(backend, &options, tensors, count, &buckets));
  CHECK(PeltonBucketsCount(buckets) == 2);
  CHECK_OK(PeltonBucketsOf(buckets, 0, &bucket));
  CHECK(bucket == 1);
  CHECK_ERROR(PeltonBucketsOf(buckets, 3, &bucket), PELTON_INVALID_ARGUMENT, "tensor: 3");
  return buckets;
}

/* Gradients are averaged; one that rank 1 leaves out counts as zeros there, and one that nobody
 * marks stays as it is. Then rank 0 waits for a round that rank 1 takes no part in; its deadline
 * ends what rank 1 waits for. */
static void RunBuckets(PeltonBackend* backend, PeltonCommunicator* communicator) {
  const int32_t rank = PeltonBackendRank(backend);
  float bias[10], weight[kCount], unused[3];
  PeltonTensor tensors[3];
  PeltonBuckets* buckets;
  PeltonOperation operation;
  int round;
  tensors[0] = TensorOf("bias", bias, 10);
  tensors[1] = TensorOf("weight", weight, kCount);
  tensors[2] = TensorOf("unused", unused, 3);
  buckets = MadeOf(backend, tensors, 3);
  for (round = 0; round < 3; ++round) {
    Fill(bias, 10, 8);
    Fill(weight, kCount, (float)(2 * rank + round));
    Fill(unused, 3, 5);
    CHECK_OK(PeltonBucketsMarkReady(buckets, 1));
    CHECK_ERROR(PeltonBucketsMarkReady(buckets, 1), PELTON_ALREADY_EXISTS, "weight");
    if (rank == 0) CHECK_OK(PeltonBucketsMarkReady(buckets, 0));
    CHECK_OK(PeltonBucketsWait(buckets, kPatience));
    CHECK(weight[0] == (float)(1 + round) && weight[kCount - 1] == (float)(1 + round));
    CHECK(bias[9] == 4);
    CHECK(unused[0] == 5);
  }
  if (rank == 0) {
    CHECK_OK(PeltonBucketsMarkReady(buckets, 1));
    CHECK_ERROR(PeltonBucketsWait(buckets, 0.2), PELTON_DEADLINE_EXCEEDED, "model 'net', rank 0");
  } else {
    CHECK_OK(PeltonBarrier(communicator, &operation));
    CHECK_ERROR(PeltonCommunicatorWait(communicator, operation, kPatience),
                PELTON_DEADLINE_EXCEEDED, "rank 0 reported: model 'net', rank 0");
  }
  PeltonBucketsFree(buckets);
}

static void RunBucketsRefused(PeltonBackend* backend) {
  float value = 0;
  PeltonTensor tensor = TensorOf("value", &value, 1);
  PeltonBucketsOptions options = {"other", "no such algorithm", 0, NULL};
  PeltonBuckets* buckets = NULL;
  CHECK_ERROR(PeltonBucketsMake(backend, &options, &tensor, 1, &buckets), PELTON_NOT_FOUND,
              "no such algorithm");
  options.algorithm = "local_sgd";
  CHECK_ERROR(PeltonBucketsMake(backend, &options, &tensor, 1, &buckets), PELTON_UNIMPLEMENTED,
              "local_sgd");
  options.algorithm = NULL;
  tensor.name = NULL;
  CHECK_ERROR(PeltonBucketsMake(backend, &options, &tensor, 1, &buckets), PELTON_INVALID_ARGUMENT,
              "tensors[0].name");
  /* The ranks differ in the tensor's size. */
  tensor.name = "value";
  tensor.count = PeltonBackendRank(backend) == 0 ? 1 : 0;
  CHECK_ERROR(PeltonBucketsMake(backend, &options, &tensor, 1, &buckets),
              PELTON_FAILED_PRECONDITION, "value");
  CHECK(buckets == NULL);
}

static void* RunRank(void* argument) {
  PeltonBackend* const backend = Joined((const Rank*)argument);
  PeltonCommunicator* communicator = NULL;
  PeltonCommunicator* last = NULL;
  PeltonOperation operation;
  CHECK_OK(PeltonCommunicatorOpen(backend, NULL, 0, &communicator));
  CHECK_OK(PeltonCommunicatorOpen(backend, NULL, 0, &last));
  RunCollectives(communicator);
  RunRefusals(backend, communicator);
  RunBucketsRefused(backend);
  RunDeadline(communicator);
  /* Only that communicator has ended. */
  CHECK_OK(PeltonBarrier(last, &operation));
  Finish(last, operation);
  PeltonCommunicatorFree(communicator);
  RunBuckets(backend, last);
  PeltonCommunicatorFree(last);
  PeltonBackendFree(backend);
  return NULL;
}

static void RunWithoutRanks(void) {
  PeltonBackend* backend = NULL;
  PeltonCoordinator* coordinator = NULL;
  PeltonBackendOptions options = {0};
  CHECK(PeltonStatusCode(NULL) == PELTON_OK && strcmp(PeltonStatusText(NULL), "") == 0);
  PeltonStatusFree(NULL);
  PeltonBackendFree(NULL);
  CHECK_ERROR(PeltonBackendStart(NULL, &backend), PELTON_INVALID_ARGUMENT, "options: is NULL");
  CHECK_ERROR(PeltonBackendStart(&options, &backend), PELTON_INVALID_ARGUMENT,
              "options.coordinator: is NULL");
  options.coordinator = "unix:/no/such/socket";
  options.world_size = 1;
  options.join_timeout_s = 1;
  CHECK_ERROR(PeltonBackendStart(&options, &backend), PELTON_NOT_FOUND, "/no/such/socket");
  CHECK_ERROR(PeltonCoordinatorServe("nowhere", kToken, &coordinator), PELTON_INVALID_ARGUMENT,
              "nowhere");
  CHECK_ERROR(PeltonBackendStartFromEnvironment(&backend), PELTON_INVALID_ARGUMENT, "WORLD_SIZE");
  CHECK(backend == NULL && coordinator == NULL);
}

/* docs/cpp.md shows these lines. They are compiled here and run nowhere, because they take the
 * environment that a launcher makes. */
void TrainAsThePageShows(float* weight, float* bias, int steps);
void TrainAsThePageShows(float* weight, float* bias, int steps) {
  PeltonBackend* backend;
  PeltonBuckets* buckets;
  PeltonTensor tensors[] = {{"weight", weight, 6, PELTON_FLOAT32}, {"bias", bias, 2, PELTON_FLOAT32}};
  PeltonBucketsOptions options = {"net", "bytegrad", 0, NULL};
  PeltonStatus* status = PeltonBackendStartFromEnvironment(&backend);
  if (status == NULL) status = PeltonBucketsMake(backend, &options, tensors, 2, &buckets);
  for (int step = 0; status == NULL && step < steps; ++step) {
    /* ... compute the gradients of the bias, then of the weight ... */
    status = PeltonBucketsMarkReady(buckets, 1);
    if (status == NULL) status = PeltonBucketsMarkReady(buckets, 0);
    if (status == NULL) status = PeltonBucketsWait(buckets, 30.0);
  }
  if (status != NULL) fprintf(stderr, "%s\n", PeltonStatusText(status));
}

int main(void) {
  Rank ranks[kRanks];
  pthread_t threads[kRanks];
  PeltonCoordinator* coordinator = NULL;
  int i;
  RunWithoutRanks();
  CHECK_OK(PeltonCoordinatorServe("127.0.0.1:0", kToken, &coordinator));
  for (i = 0; i < kRanks; ++i) {
    ranks[i].rank = i;
    ranks[i].coordinator = PeltonCoordinatorAddress(coordinator);
    CHECK(pthread_create(&threads[i], NULL, RunRank, &ranks[i]) == 0);
  }
  for (i = 0; i < kRanks; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
  PeltonCoordinatorFree(coordinator);
  return 0;
}
