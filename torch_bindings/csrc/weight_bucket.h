// Parameters that lie in a flat buffer, so that combining them copies nothing.
#ifndef PELTON_TORCH_BINDINGS_CSRC_WEIGHT_BUCKET_H_
#define PELTON_TORCH_BINDINGS_CSRC_WEIGHT_BUCKET_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pelton::torch_bindings {

// Parameters of one type and device, and two flat buffers that change places: the parameters lie in
// one, which neighbours read where it is, and what is combined is written to the other. Then the
// parameters' storages move there, and with them every tensor that is a view of them. The buffers
// are in shared memory of the host, or in the memory of the parameters' GPU. There the place of the
// parameters changes on the host, so that what is combined has to be there by then.
//
// A parameter stays where it is, and is copied in and out, if somebody else holds its storage, or
// if it is a part of other memory or not contiguous. While somebody holds a storage that lies here,
// the result is copied to it instead, so that what was exported (numpy, DLPack) stays right.
//
// A place begins at a multiple of 64 bytes, as PyTorch's allocator aligns a tensor, so that
// arithmetic gives the same bits. What is between two places is 0.
//
// Threads: one at a time. Owns: both buffers, together with the storages that lie in them.
class WeightBucket {
 public:
  // Moves them in. Shape: any, at least one. Errors (thrown): InvalidArgument: one is on neither
  // the CPU nor a GPU, or has another type or device than the first one.
  explicit WeightBucket(std::vector<at::Tensor> parameters);

  // Whether the parameters still have the shapes, type and device that the bucket was made for.
  bool Fits() const;
  // The weights as they are now. Until Adopt, or the end of what reads it, nobody changes them.
  at::Tensor Gather();
  // Where what is combined is written to. Shape: that of Gather.
  at::Tensor target() const { return buffers_->flat[1 - side_]; }
  // Gives the parameters what is in the target now.
  void Adopt();

 private:
  struct Buffers {
    std::array<at::Tensor, 2> flat;
  };
  struct Slot {
    at::Tensor parameter;
    std::array<at::Tensor, 2> places;  // of the parameter's shape, in either buffer
  };

  static bool MayMove(const at::Tensor& parameter);
  bool LiesIn(const Slot& slot, size_t side) const;
  void MoveTo(const Slot& slot, size_t side) const;

  std::shared_ptr<Buffers> buffers_;  // shared with the storages that lie in them
  std::vector<Slot> slots_;
  size_t side_ = 0;  // the buffer that the parameters lie in
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_WEIGHT_BUCKET_H_
