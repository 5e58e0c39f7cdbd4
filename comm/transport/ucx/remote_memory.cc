#include "comm/transport/ucx/remote_memory.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "comm/transport/ucx/ucx_library.h"
#include "core/base/status.h"

namespace pelton::ucx {
namespace {

// Before UCX's own key.
struct KeyPrefix {
  uint64_t base;
  uint64_t size_bytes;
  uint64_t packed_bytes;
};

absl::StatusOr<Transfer> Wrap(ucs_status_ptr_t request, absl::string_view what) {
  if (UCS_PTR_IS_ERR(request)) return ToStatus(UCS_PTR_STATUS(request), what);
  return Transfer(request);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExposedMemory>> ExposedMemory::Make(const Context& context,
                                                                   void* data, size_t size_bytes) {
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
  params.address = data;
  params.length = size_bytes;
  ucp_mem_h handle = nullptr;
  RETURN_IF_ERROR(
      ToStatus(Ucx().ucp_mem_map(context.handle(), &params, &handle), "exposing memory"));
  std::unique_ptr<ExposedMemory> memory(new ExposedMemory(context, handle));
  void* packed = nullptr;
  size_t packed_bytes = 0;
  RETURN_IF_ERROR(ToStatus(Ucx().ucp_rkey_pack(context.handle(), handle, &packed, &packed_bytes),
                           "packing a memory key"));
  const KeyPrefix prefix{reinterpret_cast<uintptr_t>(data), size_bytes, packed_bytes};
  memory->key_.assign(reinterpret_cast<const char*>(&prefix), sizeof prefix);
  memory->key_.append(static_cast<const char*>(packed), packed_bytes);
  Ucx().ucp_rkey_buffer_release(packed);
  return memory;
}

ExposedMemory::~ExposedMemory() { Ucx().ucp_mem_unmap(context_.handle(), handle_); }

Transfer::~Transfer() {
  if (request_ != nullptr) Ucx().ucp_request_free(request_);
}

bool Transfer::IsDone() const {
  return request_ == nullptr || Ucx().ucp_request_check_status(request_) != UCS_INPROGRESS;
}

absl::Status Transfer::status() const {
  if (request_ == nullptr) return absl::OkStatus();
  return ToStatus(Ucx().ucp_request_check_status(request_), "one-sided transfer");
}

absl::StatusOr<std::unique_ptr<RemoteMemory>> RemoteMemory::Attach(UcxWorker& worker, int peer,
                                                                   const std::string& key) {
  KeyPrefix prefix = {};
  if (key.size() >= sizeof prefix) std::memcpy(&prefix, key.data(), sizeof prefix);
  if (key.size() <= sizeof prefix || key.size() - sizeof prefix != prefix.packed_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("key: ", key.size(), " bytes are no memory key of rank ", peer));
  }
  ucp_rkey_h unpacked = nullptr;
  RETURN_IF_ERROR(ToStatus(
      Ucx().ucp_ep_rkey_unpack(worker.endpoint(peer), key.data() + sizeof prefix, &unpacked),
      absl::StrCat("unpacking a memory key of rank ", peer)));
  return std::unique_ptr<RemoteMemory>(
      new RemoteMemory(worker, peer, unpacked, prefix.base, prefix.size_bytes));
}

RemoteMemory::~RemoteMemory() { Ucx().ucp_rkey_destroy(key_); }

absl::Status RemoteMemory::Check(size_t count_bytes, size_t offset_bytes) const {
  if (!worker_.IsConnected(peer_)) {
    return absl::UnavailableError(absl::StrCat("rank ", peer_, " is not connected"));
  }
  if (offset_bytes <= size_bytes_ && count_bytes <= size_bytes_ - offset_bytes) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("offset: ", count_bytes, " bytes at ", offset_bytes,
                                            " leave the ", size_bytes_, " bytes of rank ", peer_));
}

absl::StatusOr<Transfer> RemoteMemory::Put(const void* local, size_t count_bytes,
                                           size_t offset_bytes) {
  RETURN_IF_ERROR(Check(count_bytes, offset_bytes));
  ucp_request_param_t param = {};
  return Wrap(Ucx().ucp_put_nbx(worker_.endpoint(peer_), local, count_bytes, base_ + offset_bytes,
                                key_, &param),
              "putting");
}

absl::StatusOr<Transfer> RemoteMemory::Get(void* local, size_t count_bytes, size_t offset_bytes) {
  RETURN_IF_ERROR(Check(count_bytes, offset_bytes));
  ucp_request_param_t param = {};
  return Wrap(Ucx().ucp_get_nbx(worker_.endpoint(peer_), local, count_bytes, base_ + offset_bytes,
                                key_, &param),
              "getting");
}

absl::StatusOr<Transfer> RemoteMemory::Flush() {
  RETURN_IF_ERROR(Check(0, 0));
  ucp_request_param_t param = {};
  return Wrap(Ucx().ucp_ep_flush_nbx(worker_.endpoint(peer_), &param), "flushing");
}

}  // namespace pelton::ucx
