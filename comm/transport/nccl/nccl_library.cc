#include "comm/transport/nccl/nccl_library.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::nccl {
namespace {

constexpr int kOldestVersion = 21400;  // the first whose calls do not block

struct FeatureRow {
  absl::string_view name;
  int since;
  bool present;
};

FeatureRow RowOf(Feature feature, const NcclTable& table) {
  switch (feature) {
    case Feature::kAvg:
      return {"ncclAvg", 21000, true};
    case Feature::kRegister:
      return {"ncclCommRegister", 21900,
              table.comm_register != nullptr && table.comm_deregister != nullptr};
  }
  return {"an unknown feature", 0, false};
}

// Binds one function after the other and keeps the name of the first that is missing.
class Binder {
 public:
  explicit Binder(const NcclLibrary::Symbols& symbols) : symbols_(symbols) {}

  template <typename Function>
  void Optional(const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(symbols_(name));
  }
  template <typename Function>
  void Needed(const char* name, Function*& function) {
    Optional(name, function);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  const NcclLibrary::Symbols& symbols_;
  std::string missing_;
};

std::string FillTable(const NcclLibrary::Symbols& symbols, NcclTable& table) {
  Binder binder(symbols);
  binder.Needed("ncclGetVersion", table.get_version);
  binder.Needed("ncclGetErrorString", table.get_error_string);
  binder.Needed("ncclGetLastError", table.get_last_error);
  binder.Needed("ncclGetUniqueId", table.get_unique_id);
  binder.Needed("ncclCommInitRankConfig", table.comm_init_rank_config);
  binder.Needed("ncclCommGetAsyncError", table.comm_get_async_error);
  binder.Needed("ncclCommFinalize", table.comm_finalize);
  binder.Needed("ncclCommDestroy", table.comm_destroy);
  binder.Needed("ncclCommAbort", table.comm_abort);
  binder.Optional("ncclCommRegister", table.comm_register);
  binder.Optional("ncclCommDeregister", table.comm_deregister);
  binder.Needed("ncclGroupStart", table.group_start);
  binder.Needed("ncclGroupEnd", table.group_end);
  binder.Needed("ncclAllReduce", table.all_reduce);
  binder.Needed("ncclReduce", table.reduce);
  binder.Needed("ncclReduceScatter", table.reduce_scatter);
  binder.Needed("ncclAllGather", table.all_gather);
  binder.Needed("ncclBroadcast", table.broadcast);
  binder.Needed("ncclSend", table.send);
  binder.Needed("ncclRecv", table.recv);
  return binder.missing();
}

absl::StatusCode CodeOf(int result) {
  switch (result) {
    case kSystemError:
    case kRemoteError:
      return absl::StatusCode::kUnavailable;
    case kInvalidArgument:
      return absl::StatusCode::kInvalidArgument;
    case kInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const NcclLibrary>> NcclLibrary::Load(const std::string& path) {
  absl::StatusOr<SharedLibrary> library =
      SharedLibrary::Find({path, {"libnccl.so.2"}, "PELTON_NCCL_LIBRARY"});
  if (!library.ok()) return Annotate(library.status(), "NCCL");
  return Bind([&](const char* name) { return library->Symbol(name); }, library->path());
}

absl::StatusOr<std::unique_ptr<const NcclLibrary>> NcclLibrary::Bind(const Symbols& symbols,
                                                                     const std::string& path) {
  NcclTable table{};
  const std::string missing = FillTable(symbols, table);
  int version = 0;
  if (table.get_version != nullptr) table.get_version(&version);
  if (version != 0 && version < kOldestVersion) {
    return absl::UnimplementedError(absl::StrCat("NCCL ", VersionText(version), " (", path,
                                                 "): needs ", VersionText(kOldestVersion),
                                                 " or later, whose calls do not block"));
  }
  if (!missing.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("NCCL ", VersionText(version), " (", path, ") has no ", missing));
  }
  return std::unique_ptr<const NcclLibrary>(new NcclLibrary(table, version, path));
}

std::string NcclLibrary::Describe() const {
  return absl::StrCat("NCCL ", VersionText(version_), " (", path_, ")");
}

absl::Status NcclLibrary::Require(Feature feature) const {
  const FeatureRow row = RowOf(feature, table_);
  if (row.present && version_ >= row.since) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(row.name, ": needs NCCL ", VersionText(row.since),
                                               " or later, and this is ", Describe()));
}

absl::Status NcclLibrary::ToStatus(int result, absl::string_view call, Handle comm) const {
  if (result == kOk || result == kInProgress) return absl::OkStatus();
  std::string text = absl::StrCat(call, ": ", table_.get_error_string(result));
  const char* last = table_.get_last_error(comm);
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, ": ", last);
  return absl::Status(CodeOf(result), text);
}

std::string VersionText(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return absl::StrCat(major, ".", rest / 100, ".", rest % 100);
}

}  // namespace pelton::nccl
