// One-sided access: a rank puts into and gets from memory that a peer has exposed.
#ifndef PELTON_COMM_TRANSPORT_UCX_REMOTE_MEMORY_H_
#define PELTON_COMM_TRANSPORT_UCX_REMOTE_MEMORY_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/transport/ucx/ucx_library.h"
#include "comm/transport/ucx/ucx_worker.h"

namespace pelton::ucx {

// A range of this process's memory that peers may reach while this lives. Over TCP the transfers
// advance only while this rank progresses the worker that the peer is connected to.
// Threads: immutable once made. Owns: the registration, not the memory.
class ExposedMemory {
 public:
  static absl::StatusOr<std::unique_ptr<ExposedMemory>> Make(const Context& context, void* data,
                                                             size_t size_bytes);
  ~ExposedMemory();
  ExposedMemory(const ExposedMemory&) = delete;
  ExposedMemory& operator=(const ExposedMemory&) = delete;

  // What a peer's RemoteMemory needs: opaque bytes, to be handed over by an authenticated way.
  const std::string& key() const { return key_; }

 private:
  ExposedMemory(const Context& context, ucp_mem_h handle) : context_(context), handle_(handle) {}

  const Context& context_;
  ucp_mem_h handle_;
  std::string key_;
};

// A put, a get or a flush under way. Threads: the worker's. Owns: UCX's request; dropping it early
// leaves the transfer to run, and its memory must outlive the worker then.
class Transfer {
 public:
  Transfer() = default;
  explicit Transfer(void* request) : request_(request) {}
  Transfer(Transfer&& other) noexcept : request_(std::exchange(other.request_, nullptr)) {}
  Transfer& operator=(Transfer&& other) noexcept {
    std::swap(request_, other.request_);
    return *this;
  }
  ~Transfer();

  // Errors of the transfer count as done. Progress the worker until then.
  bool IsDone() const;
  // Of a transfer that is done. Errors: Unavailable: the connection broke or was closed.
  absl::Status status() const;

 private:
  void* request_ = nullptr;  // null: done well
};

// A peer's exposed memory as seen from here.
// Threads: the worker's. Owns: the unpacked key; the worker outlives it.
class RemoteMemory {
 public:
  // `key` is that of an ExposedMemory of `peer`, to which `worker` is connected. Errors:
  // InvalidArgument: it is no such key.
  static absl::StatusOr<std::unique_ptr<RemoteMemory>> Attach(UcxWorker& worker, int peer,
                                                              const std::string& key);
  ~RemoteMemory();
  RemoteMemory(const RemoteMemory&) = delete;
  RemoteMemory& operator=(const RemoteMemory&) = delete;

  size_t size_bytes() const { return size_bytes_; }

  // Writes local bytes at `offset_bytes` of the peer's memory. Done: `local` may be reused; the
  // peer has the bytes after a Flush. Errors: OutOfRange: names offset and size.
  absl::StatusOr<Transfer> Put(const void* local, size_t count_bytes, size_t offset_bytes);
  // Reads the peer's bytes into `local`. Done: they are there.
  absl::StatusOr<Transfer> Get(void* local, size_t count_bytes, size_t offset_bytes);
  // Done: all earlier puts to this peer are in its memory.
  absl::StatusOr<Transfer> Flush();

 private:
  RemoteMemory(UcxWorker& worker, int peer, ucp_rkey_h key, uint64_t base, size_t size_bytes)
      : worker_(worker), peer_(peer), key_(key), base_(base), size_bytes_(size_bytes) {}
  absl::Status Check(size_t count_bytes, size_t offset_bytes) const;

  UcxWorker& worker_;
  const int peer_;
  ucp_rkey_h key_;
  const uint64_t base_;
  const size_t size_bytes_;
};

}  // namespace pelton::ucx

#endif  // PELTON_COMM_TRANSPORT_UCX_REMOTE_MEMORY_H_
