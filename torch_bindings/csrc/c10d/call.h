// Puts one call on a process group together: the tensors it works on, and what it launches.
#ifndef PELTON_TORCH_BINDINGS_CSRC_C10D_CALL_H_
#define PELTON_TORCH_BINDINGS_CSRC_C10D_CALL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/collectives.h"
#include "comm/lane/job.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {

// Launches `collective`, as often as it is called: again after a launch that found no room.
lane::Job::Launch LaunchOf(const CollectiveCall& collective, const OnStream& on_stream);
// The same of messages in the host's memory.
lane::Job::Launch SendOf(Tensor source, Rank destination, int32_t tag);
lane::Job::Launch RecvOf(Tensor target, Rank source, int32_t tag);

// Tensors that are not contiguous are packed here, and unpacked when the job is done. Types that no
// reduction knows (float8, quantised bits) may still be moved: as bytes.
// Threads: one. Owns: references to the tensors, until the job is done.
//
// Errors (thrown): InvalidArgument: names the operation, the argument and what is wrong with it.
class Call {
 public:
  enum class Use { kMoved, kReduced };

  Call(std::string name, Use use) : use_(use) { job_.name = std::move(name); }

  const std::string& name() const { return job_.name; }

  // The memory whose content `tensor` has in the end.
  Tensor Writes(const at::Tensor& tensor, const std::string& argument);
  // The memory that holds what is in `tensor` now. It is a copy where the tensor shares memory with
  // what the call writes, so that all of Writes comes before this.
  Tensor Reads(const at::Tensor& tensor, const std::string& argument);
  // The same as a tensor. Shape: that of `tensor`, contiguous.
  at::Tensor Keeps(const at::Tensor& tensor, const std::string& argument);
  // Both.
  Tensor Updates(const at::Tensor& tensor, const std::string& argument);

  // `count` uninitialised elements of the type of `like`, kept until the end. Shape: [count].
  at::Tensor Scratch(int64_t count, const at::Tensor& like);
  // In the end `target` becomes a copy of `source`. Shape: the same number of elements.
  void CopyAtEnd(const at::Tensor& target, const at::Tensor& source);

  void Launch(lane::Job::Launch launch) { job_.launches.push_back(std::move(launch)); }
  // What to launch after all that was launched, or nothing any more (Job::more).
  void Continue(absl::AnyInvocable<std::vector<lane::Job::Launch>()> more) {
    job_.more = std::move(more);
  }
  // Says that the tensors are a GPU's, else they are on the CPU.
  void TakesGpu() { takes_gpu_ = true; }
  // Runs at the end, if everything went well. What takes long (see Job::finish_lasts) says so.
  void Finally(absl::AnyInvocable<void()> last, bool lasts = false) {
    last_ = std::move(last);
    last_lasts_ = lasts;
  }
  // Says that it is a user's send, which other calls need not wait for.
  void SetSend() { job_.queue = lane::Job::Queue::kSends; }
  // Says that it receives one message with `tag`.
  void SetReceive(int32_t tag, bool is_from_any) {
    job_.queue = lane::Job::Queue::kReceives;
    job_.receive_tag = tag;
    job_.is_from_any = is_from_any;
  }

  // Throws InvalidArgument "<operation>: <what>".
  [[noreturn]] void Refuse(const std::string& what) const;

  // Its deadline is `timeout` from now.
  lane::Job Take(absl::Duration timeout);

 private:
  Tensor FlatOf(const at::Tensor& tensor, const std::string& argument) const;
  // Refuses what has no dense memory in this process, whether contiguous or not.
  void Check(const at::Tensor& tensor, const std::string& argument) const;
  bool IsWritten(const at::Tensor& tensor) const;
  bool FinishLasts() const;

  Use use_;
  bool takes_gpu_ = false;
  lane::Job job_;
  std::vector<at::Tensor> kept_;
  std::vector<at::Tensor> written_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;  // target, source
  absl::AnyInvocable<void()> last_;
  bool last_lasts_ = false;
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_C10D_CALL_H_
