// Holds our declarations against the toolkit's headers, where there is a toolkit.
#include <type_traits>

#include "comm/transport/nccl/nccl_library.h"
#include "cuda_runtime_api.h"
#include "gtest/gtest.h"
#include "nccl.h"

namespace pelton::nccl {
namespace {

static_assert(std::is_same_v<Handle, ncclComm_t>);
static_assert(std::is_same_v<cuda::StreamHandle, cudaStream_t>);
static_assert(std::is_same_v<cuda::EventHandle, cudaEvent_t>);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId));
static_assert(sizeof(int) == sizeof(ncclResult_t) && sizeof(int) == sizeof(cudaError_t));
static_assert(sizeof(Type) == sizeof(ncclDataType_t) && sizeof(Op) == sizeof(ncclRedOp_t));

TEST(InterfaceCheckTest, ResultsAreNccls) {
  EXPECT_EQ(int{kOk}, ncclSuccess);
  EXPECT_EQ(int{kUnhandledCudaError}, ncclUnhandledCudaError);
  EXPECT_EQ(int{kSystemError}, ncclSystemError);
  EXPECT_EQ(int{kInternalError}, ncclInternalError);
  EXPECT_EQ(int{kInvalidArgument}, ncclInvalidArgument);
  EXPECT_EQ(int{kInvalidUsage}, ncclInvalidUsage);
  EXPECT_EQ(int{kRemoteError}, ncclRemoteError);
  EXPECT_EQ(int{kInProgress}, ncclInProgress);
}

TEST(InterfaceCheckTest, TypesAndOpsAreNccls) {
  EXPECT_EQ(static_cast<int>(Type::kInt8), ncclInt8);
  EXPECT_EQ(static_cast<int>(Type::kUInt8), ncclUint8);
  EXPECT_EQ(static_cast<int>(Type::kInt32), ncclInt32);
  EXPECT_EQ(static_cast<int>(Type::kInt64), ncclInt64);
  EXPECT_EQ(static_cast<int>(Type::kFloat16), ncclFloat16);
  EXPECT_EQ(static_cast<int>(Type::kFloat32), ncclFloat32);
  EXPECT_EQ(static_cast<int>(Type::kFloat64), ncclFloat64);
  EXPECT_EQ(static_cast<int>(Type::kBFloat16), ncclBfloat16);
  EXPECT_EQ(static_cast<int>(Op::kSum), ncclSum);
  EXPECT_EQ(static_cast<int>(Op::kProduct), ncclProd);
  EXPECT_EQ(static_cast<int>(Op::kMax), ncclMax);
  EXPECT_EQ(static_cast<int>(Op::kMin), ncclMin);
  EXPECT_EQ(static_cast<int>(Op::kAvg), ncclAvg);
}

// Ours is the beginning of theirs.
TEST(InterfaceCheckTest, TheConfigurationBeginsLikeNccls) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const Config ours;
  EXPECT_LE(sizeof ours, sizeof theirs);
  EXPECT_EQ(ours.magic, theirs.magic);
  EXPECT_EQ(offsetof(Config, size), offsetof(ncclConfig_t, size));
  EXPECT_EQ(offsetof(Config, magic), offsetof(ncclConfig_t, magic));
  EXPECT_EQ(offsetof(Config, version), offsetof(ncclConfig_t, version));
  EXPECT_EQ(offsetof(Config, blocking), offsetof(ncclConfig_t, blocking));
}

TEST(InterfaceCheckTest, ValuesAreCudas) {
  EXPECT_EQ(cuda::kSuccess, cudaSuccess);
  EXPECT_EQ(cuda::kErrorMemoryAllocation, cudaErrorMemoryAllocation);
  EXPECT_EQ(cuda::kErrorNotReady, cudaErrorNotReady);
  EXPECT_EQ(cuda::kStreamNonBlocking, unsigned{cudaStreamNonBlocking});
  EXPECT_EQ(cuda::kEventDisableTiming, unsigned{cudaEventDisableTiming});
  EXPECT_EQ(cuda::kMemcpyDefault, cudaMemcpyDefault);
}

// As many arguments of the same sizes, for every function of the tables: enumerations are int here.
template <typename T>
using Plain = typename std::conditional_t<std::is_enum_v<T>, std::type_identity<int>,
                                          std::type_identity<T>>::type;
template <typename A, typename B>
constexpr bool Fits = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <typename R, typename... A, typename S, typename... B>
constexpr bool Same(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return Fits<Plain<R>, Plain<S>> && (Fits<Plain<A>, Plain<B>> && ...);
  }
}

template <typename Ours, typename Theirs>
void ExpectSame(Ours ours, Theirs theirs, const char* name) {
  EXPECT_TRUE(Same(ours, theirs)) << name;
}
#define EXPECT_SAME(ours, theirs) ExpectSame(ours, decltype(&theirs){}, #theirs)

TEST(InterfaceCheckTest, FunctionsTakeWhatNcclsDo) {
  const NcclTable table{};
  EXPECT_SAME(table.get_version, ncclGetVersion);
  EXPECT_SAME(table.get_error_string, ncclGetErrorString);
  EXPECT_SAME(table.get_last_error, ncclGetLastError);
  EXPECT_SAME(table.get_unique_id, ncclGetUniqueId);
  EXPECT_SAME(table.comm_init_rank_config, ncclCommInitRankConfig);
  EXPECT_SAME(table.comm_get_async_error, ncclCommGetAsyncError);
  EXPECT_SAME(table.comm_finalize, ncclCommFinalize);
  EXPECT_SAME(table.comm_destroy, ncclCommDestroy);
  EXPECT_SAME(table.comm_abort, ncclCommAbort);
  EXPECT_SAME(table.comm_register, ncclCommRegister);
  EXPECT_SAME(table.comm_deregister, ncclCommDeregister);
  EXPECT_SAME(table.group_start, ncclGroupStart);
  EXPECT_SAME(table.group_end, ncclGroupEnd);
  EXPECT_SAME(table.all_reduce, ncclAllReduce);
  EXPECT_SAME(table.reduce, ncclReduce);
  EXPECT_SAME(table.reduce_scatter, ncclReduceScatter);
  EXPECT_SAME(table.all_gather, ncclAllGather);
  EXPECT_SAME(table.broadcast, ncclBroadcast);
  EXPECT_SAME(table.send, ncclSend);
  EXPECT_SAME(table.recv, ncclRecv);
}

TEST(InterfaceCheckTest, FunctionsTakeWhatCudasDo) {
  const cuda::CudaTable table{};
  EXPECT_SAME(table.get_device_count, cudaGetDeviceCount);
  EXPECT_SAME(table.get_device, cudaGetDevice);
  EXPECT_SAME(table.set_device, cudaSetDevice);
  EXPECT_SAME(table.runtime_get_version, cudaRuntimeGetVersion);
  EXPECT_SAME(table.get_error_string, cudaGetErrorString);
  EXPECT_SAME(table.stream_create_with_flags, cudaStreamCreateWithFlags);
  EXPECT_SAME(table.stream_destroy, cudaStreamDestroy);
  EXPECT_SAME(table.stream_synchronize, cudaStreamSynchronize);
  EXPECT_SAME(table.stream_wait_event, cudaStreamWaitEvent);
  EXPECT_SAME(table.event_create_with_flags, cudaEventCreateWithFlags);
  EXPECT_SAME(table.event_destroy, cudaEventDestroy);
  EXPECT_SAME(table.event_record, cudaEventRecord);
  EXPECT_SAME(table.event_query, cudaEventQuery);
  // Which of its forms is meant.
  ExpectSame(table.allocate, decltype(static_cast<cudaError_t (*)(void**, size_t)>(&cudaMalloc)){},
             "cudaMalloc");
  EXPECT_SAME(table.release, cudaFree);
  EXPECT_SAME(table.memcpy_async, cudaMemcpyAsync);
  EXPECT_SAME(table.memset_async, cudaMemsetAsync);
}

}  // namespace
}  // namespace pelton::nccl
