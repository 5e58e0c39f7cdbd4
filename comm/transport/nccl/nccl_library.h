// NCCL as a table of functions, found when a program asks for it. Types and numbers are those of
// NCCL's C interface, declared here so that this compiles, and is tested, where NCCL is not.
#ifndef PELTON_COMM_TRANSPORT_NCCL_NCCL_LIBRARY_H_
#define PELTON_COMM_TRANSPORT_NCCL_NCCL_LIBRARY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/memory/cuda/cuda_runtime.h"

struct ncclComm;

namespace pelton::nccl {

using Handle = ncclComm*;

enum Result {
  kOk = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class Type {
  kInt8 = 0,
  kUInt8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

enum class Op { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAvg = 4 };

struct UniqueId {
  char bytes[128];
};

// The beginning of ncclConfig_t that version 2.14 has; later ones read `size` bytes and take
// defaults for the rest.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// Threads: any, as NCCL says of each. Owns: nothing. Null: the library has none of that name.
struct NcclTable {
  int (*get_version)(int* version);
  const char* (*get_error_string)(int result);
  const char* (*get_last_error)(Handle comm);
  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank_config)(Handle* comm, int rank_count, UniqueId id, int rank, Config* config);
  int (*comm_get_async_error)(Handle comm, int* result);
  int (*comm_finalize)(Handle comm);
  int (*comm_destroy)(Handle comm);
  int (*comm_abort)(Handle comm);
  int (*comm_register)(Handle comm, void* memory, size_t size_bytes, void** registration);
  int (*comm_deregister)(Handle comm, void* registration);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* source, void* target, size_t count, Type type, Op op, Handle comm,
                    cuda::StreamHandle stream);
  int (*reduce)(const void* source, void* target, size_t count, Type type, Op op, int root,
                Handle comm, cuda::StreamHandle stream);
  int (*reduce_scatter)(const void* source, void* target, size_t count, Type type, Op op,
                        Handle comm, cuda::StreamHandle stream);
  int (*all_gather)(const void* source, void* target, size_t count, Type type, Handle comm,
                    cuda::StreamHandle stream);
  int (*broadcast)(const void* source, void* target, size_t count, Type type, int root, Handle comm,
                   cuda::StreamHandle stream);
  int (*send)(const void* source, size_t count, Type type, int peer, Handle comm,
              cuda::StreamHandle stream);
  int (*recv)(void* target, size_t count, Type type, int peer, Handle comm,
              cuda::StreamHandle stream);
};

// What not every version has.
enum class Feature { kAvg, kRegister };

// The NCCL of this process. Threads: immutable once made; any. Owns: nothing.
class NcclLibrary {
 public:
  using Symbols = std::function<void*(const char* name)>;

  // `path` as SharedLibrary's; else libnccl.so.2, which PyTorch brought if it is there, or
  // PELTON_NCCL_LIBRARY. Errors: NotFound: no library; Unimplemented: names the function that it
  // lacks, or its version, if it is older than 2.14: what has no deadline cannot be used.
  static absl::StatusOr<std::unique_ptr<const NcclLibrary>> Load(const std::string& path = "");
  // The same over any source of functions, named `path` in errors.
  static absl::StatusOr<std::unique_ptr<const NcclLibrary>> Bind(const Symbols& symbols,
                                                                 const std::string& path);

  const NcclTable& calls() const { return table_; }
  int version() const { return version_; }  // 22809 for 2.28.9
  const std::string& path() const { return path_; }
  // "NCCL 2.28.9 (/path/libnccl.so.2)".
  std::string Describe() const;

  // Errors: Unimplemented: names the feature, the version that brought it and this one.
  absl::Status Require(Feature feature) const;
  // OK for kOk and kInProgress. Errors: quotes NCCL; Unavailable: the system or a peer failed.
  // `comm` may be null.
  absl::Status ToStatus(int result, absl::string_view call, Handle comm) const;

 private:
  NcclLibrary(const NcclTable& table, int version, std::string path)
      : table_(table), version_(version), path_(std::move(path)) {}

  NcclTable table_;
  int version_;
  std::string path_;
};

// "2.28.9" for 22809; also versions before 2.9, which counted otherwise (2808).
std::string VersionText(int version);

}  // namespace pelton::nccl

#endif  // PELTON_COMM_TRANSPORT_NCCL_NCCL_LIBRARY_H_
