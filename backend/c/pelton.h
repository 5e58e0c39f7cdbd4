/* Pelton for programs in C: backends, communicators, tensors and buckets. C99; docs/cpp.md has an
 * example.
 *
 * A call that may fail gives a PeltonStatus: NULL when all went well, else an error with its code
 * and a text that says what happened, where, and what to do next. The caller frees it. Nothing
 * throws. Arguments that are NULL where something is needed, and numbers that mean nothing, are
 * PELTON_INVALID_ARGUMENT, by name.
 *
 * Timeouts are in seconds from the call, 0 or more; a wait that reaches its own ends with
 * PELTON_DEADLINE_EXCEEDED.
 *
 * Threads: a handle is used by one thread at a time, unless a function says otherwise. What is made
 * of a backend is freed before the backend. Freeing NULL does nothing.
 */
#ifndef PELTON_BACKEND_C_PELTON_H_
#define PELTON_BACKEND_C_PELTON_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The codes of absl::Status that a program can react to; there may be others. */
typedef enum PeltonCode {
  PELTON_OK = 0,
  PELTON_INVALID_ARGUMENT = 3,
  PELTON_DEADLINE_EXCEEDED = 4,
  PELTON_NOT_FOUND = 5,
  PELTON_ALREADY_EXISTS = 6,
  PELTON_RESOURCE_EXHAUSTED = 8,
  PELTON_FAILED_PRECONDITION = 9,
  PELTON_ABORTED = 10, /* another rank has ended the operation */
  PELTON_UNIMPLEMENTED = 12,
  PELTON_INTERNAL = 13,
  PELTON_UNAVAILABLE = 14, /* a rank is lost */
  PELTON_UNAUTHENTICATED = 16
} PeltonCode;

/* A number, as any that a program gives is looked at, and refused with its value. */
typedef int32_t PeltonDType;
enum {
  PELTON_FLOAT32 = 0,
  PELTON_FLOAT64 = 1,
  PELTON_FLOAT16 = 2,
  PELTON_BFLOAT16 = 3,
  PELTON_UINT8 = 4,
  PELTON_INT8 = 5,
  PELTON_INT16 = 6,
  PELTON_INT32 = 7,
  PELTON_INT64 = 8
};

typedef int32_t PeltonReduceOp;
enum { PELTON_SUM = 0, PELTON_PRODUCT = 1, PELTON_MIN = 2, PELTON_MAX = 3, PELTON_AVG = 10 };

typedef struct PeltonStatus PeltonStatus;
typedef struct PeltonCoordinator PeltonCoordinator;
typedef struct PeltonBackend PeltonBackend;
typedef struct PeltonCommunicator PeltonCommunicator;
typedef struct PeltonBuckets PeltonBuckets;

/* PELTON_OK for NULL. */
PeltonCode PeltonStatusCode(const PeltonStatus* status);
/* Ends with a zero byte; "" for NULL. Valid until the status is freed. */
const char* PeltonStatusText(const PeltonStatus* status);
void PeltonStatusFree(PeltonStatus* status);

/* --- Coordinator: where the ranks of a job meet --- */

/* Serves one at "<host>:<port>", an IPv6 address in brackets, until it is freed; port 0 takes a
 * free one. `token` is the job's secret, of 16 bytes at least. Only for jobs that no launcher
 * starts: else rank 0 serves it. Blocks: while a host's name is looked up. Errors:
 * PELTON_INVALID_ARGUMENT: address or token; PELTON_NOT_FOUND: no such host; PELTON_UNAVAILABLE:
 * the port is taken. */
PeltonStatus* PeltonCoordinatorServe(const char* address, const char* token,
                                     PeltonCoordinator** coordinator);
/* With the port in it. Valid until the coordinator is freed. */
const char* PeltonCoordinatorAddress(const PeltonCoordinator* coordinator);
void PeltonCoordinatorFree(PeltonCoordinator* coordinator);

/* --- Backend: this process's place in its job --- */

/* The texts are copied. */
typedef struct PeltonBackendOptions {
  int32_t rank;
  int32_t world_size;
  const char* coordinator;    /* "<host>:<port>", or "unix:<path>" of the rank's pelton-daemon */
  const char* token;          /* the job's secret; NULL with a daemon */
  double operation_timeout_s; /* of rounds that fail elsewhere; 0: the default, 30 minutes */
  double join_timeout_s; /* how long the other ranks are waited for; 0: the default, as above */
} PeltonBackendOptions;

/* Joins the job. Blocks: until all ranks have, at most the join timeout. Errors:
 * PELTON_DEADLINE_EXCEEDED: names the missing ranks; PELTON_UNAUTHENTICATED: another token;
 * PELTON_UNAVAILABLE: the coordinator cannot be reached, or a rank has died. A rank joins again
 * only once all ranks have freed their backends, because the job lasts until then. */
PeltonStatus* PeltonBackendStart(const PeltonBackendOptions* options, PeltonBackend** backend);
/* The same for a rank that `pelton run --no-python` or `bfrun` has started: what it needs is in the
 * environment. Once in a process, because rank 0's coordinator ends with its backend. Errors: also
 * PELTON_INVALID_ARGUMENT: a variable is missing or malformed, by name. */
PeltonStatus* PeltonBackendStartFromEnvironment(PeltonBackend** backend);
int32_t PeltonBackendRank(const PeltonBackend* backend);
int32_t PeltonBackendWorldSize(const PeltonBackend* backend);
/* Leaves the job in good order. Blocks: at most 10 s. */
void PeltonBackendFree(PeltonBackend* backend);

/* --- Communicator: operations among some ranks --- */

/* `count` elements at `data`, which the caller owns and keeps until the operation is through. */
typedef struct PeltonTensor {
  const char* name; /* of buckets' tensors, unique among them; else of no meaning */
  void* data;
  uint64_t count;
  PeltonDType dtype;
} PeltonTensor;

/* An operation that has been started; never 0. */
typedef uint64_t PeltonOperation;

/* Opens one among `count` ranks of the world, this one included, or among all where `ranks` is
 * NULL. Collective: these ranks call it in the same order. Blocks: until all have called, at most
 * the join timeout. Errors: PELTON_INVALID_ARGUMENT: a rank that is none, or twice, or this one
 * missing; PELTON_DEADLINE_EXCEEDED: names those that have not called. */
PeltonStatus* PeltonCommunicatorOpen(PeltonBackend* backend, const int32_t* ranks, size_t count,
                                     PeltonCommunicator** communicator);
/* Among its members. */
int32_t PeltonCommunicatorRank(const PeltonCommunicator* communicator);
int32_t PeltonCommunicatorSize(const PeltonCommunicator* communicator);
/* Ends what is in flight. */
void PeltonCommunicatorFree(PeltonCommunicator* communicator);

/* Each of these starts an operation, which PeltonCommunicatorWait completes. All members start the
 * same ones in the same order. Roots, destinations and sources are ranks among the members. Block:
 * never. Errors: PELTON_INVALID_ARGUMENT: names the argument; what an earlier abort said. */

/* tensor[i] = op over all members of tensor[i]. */
PeltonStatus* PeltonAllReduce(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                              PeltonReduceOp op, PeltonOperation* operation);
/* tensor = the root's. */
PeltonStatus* PeltonBroadcast(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                              int32_t root, PeltonOperation* operation);
/* target = the members' sources, one after the other; it has as many elements as all of them. */
PeltonStatus* PeltonAllGather(PeltonCommunicator* communicator, const PeltonTensor* source,
                              const PeltonTensor* target, PeltonOperation* operation);
/* Met by the other end's PeltonRecv of the same count and dtype. */
PeltonStatus* PeltonSend(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                         int32_t destination, PeltonOperation* operation);
PeltonStatus* PeltonRecv(PeltonCommunicator* communicator, const PeltonTensor* tensor,
                         int32_t source, PeltonOperation* operation);
/* Through when every member has started it. */
PeltonStatus* PeltonBarrier(PeltonCommunicator* communicator, PeltonOperation* operation);

/* Waits for an operation of this communicator; each may be waited for in any order. Blocks: at most
 * `timeout_s`. Errors: what the operation failed with; PELTON_DEADLINE_EXCEEDED: names the
 * operation and the ranks that have not started it, and ends the communicator on all members. */
PeltonStatus* PeltonCommunicatorWait(PeltonCommunicator* communicator, PeltonOperation operation,
                                     double timeout_s);

/* --- Buckets: tensors that are communicated together, round by round, while others are made --- */

/* The texts and `bucket_of` are copied. */
typedef struct PeltonBucketsOptions {
  const char* name;           /* for reports; the same on all ranks */
  const char* algorithm;      /* as `pelton algorithms` lists them; NULL: "gradient_allreduce" */
  uint64_t bucket_size_bytes; /* 0: the default, 10 MiB */
  const int32_t* bucket_of;   /* of each tensor, from 0 on, released in that order; NULL: by size */
} PeltonBucketsOptions;

/* Buckets of `count` tensors, whose memory is borrowed until they are freed. Collective over all
 * ranks. Blocks: until the ranks have agreed on the plan, at most the join timeout. Errors:
 * PELTON_NOT_FOUND: no such algorithm; PELTON_UNIMPLEMENTED: the algorithm works on weights between
 * steps; PELTON_INVALID_ARGUMENT: a name that is there twice, for instance;
 * PELTON_FAILED_PRECONDITION: names the first tensor that differs between the ranks. */
PeltonStatus* PeltonBucketsMake(PeltonBackend* backend, const PeltonBucketsOptions* options,
                                const PeltonTensor* tensors, size_t count, PeltonBuckets** buckets);
size_t PeltonBucketsCount(const PeltonBuckets* buckets);
/* Where the tensor is. Errors: PELTON_INVALID_ARGUMENT: no such tensor. */
PeltonStatus* PeltonBucketsOf(const PeltonBuckets* buckets, size_t tensor, int32_t* bucket);
/* The tensor's elements are final in this round: they are copied, and its bucket goes out when all
 * of it are here. Blocks: never. Errors: PELTON_INVALID_ARGUMENT: no such tensor;
 * PELTON_ALREADY_EXISTS: marked already in this round. */
PeltonStatus* PeltonBucketsMarkReady(PeltonBuckets* buckets, size_t tensor);
/* Ends the round: what is not marked counts as zeros, and once every bucket is complete the results
 * are in the tensors; one that no rank has marked stays as it is. Blocks: at most `timeout_s`.
 * Errors: the first of the round, after which no tensor has changed; PELTON_DEADLINE_EXCEEDED:
 * names the ranks that are missing. Either fails the job, unless the ranks merely differ
 * (PELTON_INVALID_ARGUMENT): whatever the other ranks wait for ends with the same code, and a text
 * that names this rank. */
PeltonStatus* PeltonBucketsWait(PeltonBuckets* buckets, double timeout_s);
void PeltonBucketsFree(PeltonBuckets* buckets);

#ifdef __cplusplus
}
#endif

#endif  // PELTON_BACKEND_C_PELTON_H_
