// A model of which Pelton communicates tensors: what the trainer and autograd's hooks do goes to
// its port as events, and its tensors are the port's.
#ifndef PELTON_TORCH_BINDINGS_CSRC_WRAPPED_MODEL_H_
#define PELTON_TORCH_BINDINGS_CSRC_WRAPPED_MODEL_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/backend.h"
#include "backend/model_port.h"
#include "core/plan/round_mode.h"
#include "core/round/model_state.h"
#include "core/round/tensor_port.h"
#include "torch_bindings/csrc/backward_watch.h"
#include "torch_bindings/csrc/profiler_range.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {

class MomentumSlot;
class Slot;

// Threads: the trainer's; hooks run on autograd's thread while the trainer waits in backward.
// Called without the GIL. Owns: the hooks, and the port; keeps the backend alive.
class WrappedModel final : public std::enable_shared_from_this<WrappedModel>, private TensorPort {
 public:
  // Threads: a value. Owns: a reference to the tensor.
  struct Moment {
    at::Tensor tensor;  // an optimizer's; lies in a bucket from now on
    double beta = 0;    // how much of it a new gradient leaves
  };

  // Threads: a value. Owns: references to the tensors.
  struct Contents {
    NamedTensors parameters;
    // By parameter, where the algorithm communicates momenta; else empty.
    std::vector<Moment> moments = {};
  };

  // As ModelPort::Create. Where tensors are communicated when ready they are what backward passes
  // make, gradients or momenta, and hooks are installed; else they are the parameters themselves.
  // Errors: also InvalidArgument: no parameter, mixed devices, or moments that do not fit.
  static absl::StatusOr<std::shared_ptr<WrappedModel>> Create(std::shared_ptr<Backend> backend,
                                                              PortOptions options,
                                                              const Contents& contents);
  ~WrappedModel() override;

  // Not after Detach.
  ModelPort& port() const { return *owned_->port; }
  // ModelPort::Post of a trainer's event, with what the bindings know themselves; whether it
  // completes a step. Where tensors are communicated when ready, the model's own hooks tell the
  // port of backward passes: the beginning of one is refused if CheckRound has an error, and what
  // an optimizer is about to use is finished first.
  absl::StatusOr<bool> Post(TrainingEvent event);

  // Off: gradients accumulate locally; the next synchronised round communicates their sum. Events
  // from now on are of no_sync.
  void SetSynchronized(bool synchronized) { synchronized_ = synchronized; }

  // Knows of gradients what an earlier registration knew, maybe of other tensors, and detached
  // since: which are results of a round.
  void TakeOver(const WrappedModel& before);
  // Names of parameters that have a gradient which no round has communicated: one of local
  // backwards (no_sync), or any one where weights are communicated. Also after Detach.
  std::vector<std::string> LocalGradients() const;
  // Has the next round communicate the gradients of these parameters also if no backward makes more
  // of them.
  void MarkLocal(const std::vector<std::string>& names);
  // Whether those of them may be communicated outside of a round. Errors: FailedPrecondition: local
  // backwards have added to a sum of the ranks, which another sum would count once for each rank.
  absl::Status CheckLocalGradients(const std::vector<std::string>& names) const;
  // Whether the algorithm adds the ranks' gradients and does not average them.
  bool sums() const { return sums_; }

  // Changes when the tensors do; see TensorPort.
  uint64_t Fingerprint() const override;

  // "name: what changed", for each parameter that is no longer what was registered.
  std::vector<std::string> Changes() const;

  // Called before each forward pass. Errors: what an earlier round failed with; a backward pass
  // that ended in the middle of a round.
  absl::Status CheckRound() const;

  // Called after each forward with its mode and those of its outputs that have a gradient function:
  // a backward that comes by one of them and accumulates gradients takes part in a round, also if
  // it uses none of the parameters. It is the outermost of the round, and its end is the round's,
  // even if the gradients come from inner ones (re-entrant checkpointing). A backward of a forward
  // in evaluation mode takes part like any other, and ends in an error where ranks differ in that.
  // Of tensors that are communicated between steps it does nothing.
  void WatchOutputs(const std::vector<at::Tensor>& outputs, RoundMode mode);

  // Ends a round that is open: one between steps, or one that an inner backward left open because
  // no output was watched. Blocks: until the timeout.
  absl::Status FinishRound();

  // Of the rounds to come; by parameter. Errors: InvalidArgument: as many as there are momenta.
  absl::Status SetBetas(const std::vector<double>& betas);

  // See ModelPort::Tune. Errors: also FailedPrecondition: it was detached.
  absl::Status Tune(const std::string& csv_path);
  void EndTuning();
  bool is_tuning() const { return owned_ != nullptr && port().is_tuning(); }
  // Tensor names by bucket, in launch order.
  std::vector<std::vector<std::string>> Buckets() const;
  // The memory in which gradients lie one after the other, by bucket, and the first element of each
  // parameter's; nothing where none do. It is the buckets', and of use until the plan changes.
  using FlatGradients = std::pair<at::Tensor, std::vector<std::pair<std::string, uint64_t>>>;
  std::vector<FlatGradients> FlatBuckets() const;
  // Errors: FailedPrecondition: a round is open.
  absl::StatusOr<ModelState> State();

  ModelPort::Statistics statistics() const;

  // Removes the hooks and frees the buckets; see ModelPort::Detach. Idempotent.
  void Detach(absl::Duration timeout);

 private:
  WrappedModel(std::shared_ptr<Backend> backend, const PortOptions& options);

  // What a running backward keeps, so that its end is seen, whichever it is.
  struct Backward;

  absl::Status Install(PortOptions options, const Contents& contents);
  void MakeSlots(const Contents& contents);
  std::vector<Slot*> Named(const std::vector<std::string>& names) const;
  Slot& at(SlotId slot) const { return *slots_[static_cast<size_t>(slot.value())]; }
  // Of the port.
  void Place(SlotId slot, std::byte* memory) override;
  absl::StatusOr<Brought> Bring(SlotId slot, bool is_used) override;
  absl::Status BeginMerge(absl::Time deadline) override;
  void Merge(SlotId slot, const CommitRule& rule, bool used_by_any) override;
  void Release(SlotId slot) override;

  // Errors: FailedPrecondition: the gradient is a sum of the ranks already.
  absl::Status CheckNoSum(const Slot& slot) const;
  void OpenRound();
  void OnGradient(size_t index, bool arrived);
  absl::Status TakeGradient(size_t index);
  absl::Status CheckGradient(const Slot& slot) const;
  absl::Status MarkReady(size_t index);
  void OnOutputReached(RoundMode mode);
  bool TakesPart() const;
  std::shared_ptr<Backward> JoinBackward();
  void OnEnd(Backward& backward, EndStage stage);
  // Whether the backward that ends here, and not one around it, completes the round.
  bool CompletesRound(bool takes_part);
  void OnBrokenBackward();
  // A round's end, in the steps of EndStage.
  absl::Status LaunchRest();
  absl::Status AwaitRound();
  absl::Status CloseRound();
  // To be current where the rounds' own thread works on tensors of a GPU; else nothing.
  std::optional<c10::Stream> TensorsStream() const;
  absl::Status Settled(absl::Status status);  // ends the rounds with it unless it is OK
  absl::Status CheckUnstepped();
  absl::Status BrokenBackward() const;
  // Ends the rounds with what went wrong here: the peers would wait for this rank in vain.
  absl::Status Fail(absl::Status status);

  // The port goes before its backend.
  struct Owned {
    std::shared_ptr<Backend> backend;  // shared: Python's objects go in any order
    ProfiledRounds profiled;
    std::unique_ptr<ModelPort> port;
  };

  const ModelOptions options_;
  const bool sums_;
  at::Device device_ = at::kCPU;  // where the buckets are
  // Where tensors of a GPU are brought and merged by the rounds' own thread.
  std::optional<TrainersStream> trainers_stream_;
  // Shared: gradients that a user holds on to lie in the port's memory. Null once detached.
  std::shared_ptr<Owned> owned_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<MomentumSlot*> momenta_;  // the same, if they are momenta
  absl::Status failure_;                // the first round that failed
  bool synchronized_ = true;
  RoundMode mode_ = RoundMode::kTraining;   // of the round that is open or comes next
  std::atomic<bool> round_is_open_{false};  // a backward that broke off is seen by any thread
  std::weak_ptr<Backward> backward_;        // that is running and holds the callback for its end
  std::vector<size_t> deferred_;  // slots whose gradients have come and are not marked yet
  // Whether a round has shown which slots a backward accumulates into several times.
  bool has_learned_ = false;
  bool is_installed_ = false;
  bool when_ready_ = true;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_WRAPPED_MODEL_H_
