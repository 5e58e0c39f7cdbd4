#include <c10/core/CPUAllocator.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/memory/copy_beside.h"
#include "torch_bindings/csrc/define.h"
#include "torch_bindings/csrc/status_to_exception.h"

namespace pelton::torch_bindings {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

// A storage's memory, kept by the storage and by the code that copies it: a storage that gets other
// memory meanwhile (share_memory_, which hands a tensor to another process; resize_) lets go of
// what it has.
using SharedMemory = std::shared_ptr<at::DataPtr>;

void DropShare(void* share) { delete static_cast<SharedMemory*>(share); }

SharedMemory ShareOf(const at::Tensor& tensor) {
  at::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const at::DataPtr& data = storage->data_ptr();
  if (data.get_deleter() == &DropShare) return *static_cast<SharedMemory*>(data.get_context());
  auto memory = std::make_shared<at::DataPtr>();
  *memory = storage->set_data_ptr(
      at::DataPtr(data.get(), new SharedMemory(memory), &DropShare, data.device()));
  return memory;
}

// Keeps what is copied, and where to. Threads: as CopyBeside. Owns: the tensors' memory.
class TensorCopies {
 public:
  // Whether a tensor lies in memory of PyTorch's own allocator, without gaps. Memory of another
  // kind has an owner that looks for it (shared memory's), or an owner that is not known here.
  static bool MayCopy(const at::Tensor& tensor) {
    if (!tensor.is_cpu() || !tensor.has_storage() || !tensor.is_contiguous() ||
        tensor.const_data_ptr() == nullptr) {
      return false;
    }
    const at::DeleterFnPtr deleter = tensor.storage().data_ptr().get_deleter();
    return deleter == &DropShare || deleter == c10::GetDefaultCPUAllocator()->raw_deleter();
  }

  // Each source and its first byte in `target`.
  using Parts = std::vector<std::pair<at::Tensor, uint64_t>>;

  void Begin(const Parts& parts, const at::Tensor& target) {
    ThrowIfError(CheckNotForkedChild());
    std::vector<CopyBeside::Part> raw;
    std::vector<SharedMemory> memory;
    for (const auto& [source, offset] : parts) {
      if (!MayCopy(source) || !target.is_contiguous() || offset > target.nbytes() ||
          source.nbytes() > target.nbytes() - offset) {
        ThrowStatus(absl::InvalidArgumentError(
            absl::StrCat("copies: tensor ", raw.size(), " of ", source.nbytes(), " bytes at ",
                         offset, ", in a target of ", target.nbytes(),
                         ": must lie in memory of PyTorch's own without gaps, and fit")));
      }
      memory.push_back(ShareOf(source));
      raw.push_back({static_cast<const std::byte*>(source.const_data_ptr()),
                     static_cast<std::byte*>(target.data_ptr()) + offset, source.nbytes()});
    }
    // The copying thread may not be told; then the thread that waits makes the copy.
    copies_.Begin(std::move(raw)).IgnoreError();
    memory_ = std::move(memory);  // an earlier copy's is at rest now
    target_ = target;
  }

  bool is_copied() const { return copies_.is_copied(); }

  std::optional<size_t> Finish(double timeout_s) {
    ThrowIfError(copies_.Wait(Clock::Real().Now() + absl::Seconds(timeout_s)));
    const std::optional<size_t> changed = copies_.FindChanged();
    Abandon();
    return changed;
  }

  void Abandon() {
    copies_.Abandon();
    memory_.clear();
    target_.reset();
  }

 private:
  std::vector<SharedMemory> memory_;
  at::Tensor target_;
  CopyBeside copies_;  // goes first
};

}  // namespace

void DefineCopies(py::module_& module) {
  using C = TensorCopies;
  py::class_<C, ProcessPtr<C>>(module, "TensorCopies")
      .def(py::init([] {
        WatchForks();
        return ProcessPtr<C>(std::make_unique<C>());
      }))
      .def_static("may_copy", &C::MayCopy, py::arg("tensor"))
      .def("begin", &C::Begin, py::arg("parts"), py::arg("target"), NoGil())
      .def_property_readonly("is_copied", &C::is_copied)
      .def("finish", &C::Finish, py::arg("timeout_s"), NoGil())
      .def("abandon", &C::Abandon, NoGil());
}

}  // namespace pelton::torch_bindings
