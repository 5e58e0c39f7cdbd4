#include "comm/transport/nccl/nccl_transport.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/nccl/nccl_communicator.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton {
namespace nccl {
namespace {

// What the ranks must have in common. On the wire between the hosts.
struct Introduction {
  UniqueId id;
  int32_t version;
  int32_t agree_first;
};
static_assert(sizeof(Introduction) == 136);

// Threads: as Transport. Owns: the libraries' tables and the ends of communicators.
class NcclTransport final : public Transport {
 public:
  NcclTransport(Transport& host, Rank rank, std::unique_ptr<const NcclLibrary> library,
                std::unique_ptr<const cuda::CudaRuntime> runtime, int device,
                const NcclOptions& options)
      : host_(host),
        rank_(rank),
        library_(std::move(library)),
        runtime_(std::move(runtime)),
        device_(device),
        agree_first_(options.agree_first),
        kernels_path_(options.kernels_path) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    const std::string what =
        absl::StrCat("nccl: rank ", rank_.value(), ": opening communicator ", id.value());
    absl::StatusOr<std::unique_ptr<Communicator>> host = host_.Open(id, group, deadline);
    if (!host.ok()) return Annotate(host.status(), what);
    Communicator& between = **host;
    auto communicator = std::make_unique<NcclCommunicator>(
        CommunicatorParts{*library_, *runtime_, endings_, *std::move(host), device_,
                          group.generation, agree_first_, kernels_path_},
        [this](NcclCommunicator* closed) { open_.Remove(closed); });
    open_.Add(communicator.get());
    absl::StatusOr<UniqueId> nccl_id = Introduce(between, deadline);
    const absl::Status connected =
        nccl_id.ok() ? communicator->Connect(*nccl_id, deadline) : nccl_id.status();
    if (connected.ok()) return communicator;
    const absl::Status failed = Annotate(connected, what);
    communicator->Abort(failed);  // so that the peers do not wait for us
    return failed;
  }

  void Abort(const absl::Status& reason) override {
    open_.ForEach([&](NcclCommunicator* communicator) { communicator->Abort(reason); });
  }

 private:
  // Rank 0's id for NCCL, if all ranks fit together.
  absl::StatusOr<UniqueId> Introduce(Communicator& host, absl::Time deadline) {
    Introduction mine{{}, library_->version(), agree_first_ ? 1 : 0};
    if (host.rank() == Rank(0)) {
      RETURN_IF_ERROR(library_->ToStatus(library_->calls().get_unique_id(&mine.id),
                                         "ncclGetUniqueId", nullptr));
    }
    std::vector<Introduction> all(static_cast<size_t>(host.world_size().value()));
    ASSIGN_OR_RETURN(const Completion completion,
                     AllGather(host, {&mine, sizeof mine, DType::kUInt8},
                               {all.data(), all.size() * sizeof mine, DType::kUInt8}));
    RETURN_IF_ERROR(Await(host, completion, deadline));
    for (size_t r = 1; r < all.size(); ++r) RETURN_IF_ERROR(Compare(all[0], all[r], r));
    return all[0].id;
  }

  static absl::Status Compare(const Introduction& first, const Introduction& other, size_t rank) {
    if (first.version != other.version) {
      return absl::FailedPreconditionError(
          absl::StrCat("NCCL is ", VersionText(first.version), " on rank 0 and ",
                       VersionText(other.version), " on rank ", rank));
    }
    if (first.agree_first != other.agree_first) {
      return absl::FailedPreconditionError(absl::StrCat("agree_first is ", first.agree_first,
                                                        " on rank 0 and ", other.agree_first,
                                                        " on rank ", rank));
    }
    return absl::OkStatus();
  }

  Transport& host_;
  const Rank rank_;
  const std::unique_ptr<const NcclLibrary> library_;
  const std::unique_ptr<const cuda::CudaRuntime> runtime_;
  const int device_;
  const bool agree_first_;
  const std::string kernels_path_;
  SharedList<NcclCommunicator*> open_;
  Endings endings_;  // last: it uses the libraries
};

// All ranks launch the operations of one communicator in the same order; those of several, which
// different threads drive, have none in common.
absl::Status CheckLaunchOrder() {
  const char* const implicit = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  if (implicit == nullptr || *implicit == 0 || std::strcmp(implicit, "0") == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "NCCL_LAUNCH_ORDER_IMPLICIT is ", implicit,
      ": NCCL would run the operations of this device's communicators in the order in which this "
      "rank launches them, the other ranks in theirs, and each could wait for the others for ever; "
      "unset it"));
}

absl::StatusOr<int> ChooseDevice(const cuda::CudaRuntime& runtime, std::optional<int> wanted) {
  const int count = runtime.device_count();
  if (count == 0) {
    return absl::FailedPreconditionError(absl::StrCat("no GPU: ", runtime.WhyNoDevice()));
  }
  int device = 0;
  if (wanted.has_value()) {
    device = *wanted;
  } else {
    RETURN_IF_ERROR(runtime.ToStatus(runtime.calls().get_device(&device), "cudaGetDevice"));
  }
  if (device >= 0 && device < count) return device;
  return absl::InvalidArgumentError(
      absl::StrCat("device: ", device, " is not in [0, ", count, ")"));
}

}  // namespace
}  // namespace nccl

NcclOptions NcclOptions::FromEnvironment() {
  NcclOptions options;
  const char* agree_first = std::getenv("PELTON_NCCL_AGREE_FIRST");
  options.agree_first = agree_first != nullptr && std::strcmp(agree_first, "1") == 0;
  return options;
}

absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(const TransportOptions& options,
                                                             const NcclOptions& nccl_options) {
  const std::string what = absl::StrCat("nccl: rank ", options.rank.value());
  if (options.host == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": host: it needs a transport of hosts"));
  }
  RETURN_IF_ERROR(Annotate(nccl::CheckLaunchOrder(), what));
  auto runtime = cuda::CudaRuntime::Load(nccl_options.cudart_path);
  if (!runtime.ok()) return Annotate(runtime.status(), what);
  const absl::StatusOr<int> device = nccl::ChooseDevice(**runtime, nccl_options.device);
  if (!device.ok()) return Annotate(device.status(), what);
  auto library = nccl::NcclLibrary::Load(nccl_options.nccl_path);
  if (!library.ok()) return Annotate(library.status(), what);
  return std::make_unique<nccl::NcclTransport>(*options.host, options.rank, *std::move(library),
                                               *std::move(runtime), *device, nccl_options);
}

namespace {

absl::StatusOr<std::unique_ptr<Transport>> MakeFromEnvironment(const TransportOptions& options) {
  NcclOptions nccl_options = NcclOptions::FromEnvironment();
  nccl_options.device = options.device_index;
  return MakeNcclTransport(options, nccl_options);
}

REGISTER_TRANSPORT(nccl, "GPUs, over NCCL", MakeFromEnvironment);

}  // namespace
}  // namespace pelton
