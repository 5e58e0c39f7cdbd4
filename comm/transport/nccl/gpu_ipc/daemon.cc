#include "comm/transport/nccl/gpu_ipc/daemon.h"

#include "absl/strings/str_cat.h"
#include "comm/transport/nccl/gpu_ipc/handles.h"
#include "core/base/status.h"

namespace pelton::gpu_ipc {
namespace {

constexpr uint64_t kOwnCount = 1024;

// Threads: one. Owns: nothing, see Device.
class Daemon {
 public:
  Daemon(Device& device, const Experiment& experiment, Peer& trainer, absl::Time deadline)
      : device_(device), experiment_(experiment), trainer_(trainer), deadline_(deadline) {}

  // What a context costs shows once a kernel has run in it.
  absl::Status MakeContext() {
    ASSIGN_OR_RETURN(stream_, device_.NewStream());
    ASSIGN_OR_RETURN(own_, device_.NewFloats(kOwnCount, 1));
    ASSIGN_OR_RETURN(const double* const half, device_.NewFactors({0.5}));
    RETURN_IF_ERROR(device_.Combine(own_, nullptr, half, own_, kOwnCount, stream_));
    RETURN_IF_ERROR(AwaitStream("the first kernel"));
    return trainer_.Tell(Word::kHasContext);
  }

  // NCCL takes most of its memory at the first operation.
  absl::Status OpenBuckets(int rank) {
    ASSIGN_OR_RETURN(const Message handles, trainer_.Expect(Word::kHandles, deadline_));
    ASSIGN_OR_RETURN(buckets_, Import(device_, experiment_, handles.text));
    RETURN_IF_ERROR(device_.Connect(experiment_.daemons_id, rank, experiment_.ranks, deadline_));
    Experiment small = experiment_;
    small.bucket_bytes = kOwnCount * sizeof(float);
    RETURN_IF_ERROR(device_.Work(own_, small, stream_, deadline_));
    RETURN_IF_ERROR(AwaitStream("the first allreduce"));
    return trainer_.Tell(Word::kIsReady);
  }

  absl::Status Serve() {
    while (true) {
      ASSIGN_OR_RETURN(const Message message, trainer_.Hear(deadline_));
      if (message.word == Word::kEnd) return absl::OkStatus();
      const bool is_bucket = message.number >= 0 && message.number < experiment_.buckets;
      if (message.word != Word::kLaunch || !is_bucket) {
        return absl::InvalidArgumentError(absl::StrCat("message: no bucket ", message.number));
      }
      RETURN_IF_ERROR(Launch(static_cast<size_t>(message.number)));
      RETURN_IF_ERROR(trainer_.Tell(Word::kLaunched, message.number));
    }
  }

 private:
  absl::Status Launch(size_t bucket) {
    RETURN_IF_ERROR(
        device_.ToStatus(device_.calls().stream_wait_event(stream_, buckets_.ready[bucket], 0),
                         "cudaStreamWaitEvent"));
    float* const memory = buckets_.memory + bucket * experiment_.count();
    RETURN_IF_ERROR(device_.Work(memory, experiment_, stream_, deadline_));
    return device_.ToStatus(device_.calls().event_record(buckets_.done[bucket], stream_),
                            "cudaEventRecord");
  }

  absl::Status AwaitStream(absl::string_view what) {
    ASSIGN_OR_RETURN(const cuda::EventHandle end, device_.NewEvent(/*is_shared=*/false));
    RETURN_IF_ERROR(
        device_.ToStatus(device_.calls().event_record(end, stream_), "cudaEventRecord"));
    return device_.Await(end, what, deadline_, [&] { return trainer_.Check(); });
  }

  Device& device_;
  const Experiment& experiment_;
  Peer& trainer_;
  const absl::Time deadline_;
  cuda::StreamHandle stream_ = nullptr;
  float* own_ = nullptr;  // [kOwnCount]
  SharedBuckets buckets_;
};

}  // namespace

absl::Status RunDaemon(Device& device, const Experiment& experiment, int rank, Peer& trainer,
                       absl::Time deadline) {
  Daemon daemon(device, experiment, trainer, deadline);
  absl::Status status = daemon.MakeContext();
  if (status.ok()) status = daemon.OpenBuckets(rank);
  if (status.ok()) status = daemon.Serve();
  // A trainer that is gone does not need to be told.
  if (!status.ok()) trainer.Tell(Word::kFailed, 0, status.message()).IgnoreError();
  return status;
}

}  // namespace pelton::gpu_ipc
