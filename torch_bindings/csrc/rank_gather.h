// An allgather of tensors that differ in their first dimensions.
#ifndef PELTON_TORCH_BINDINGS_CSRC_RANK_GATHER_H_
#define PELTON_TORCH_BINDINGS_CSRC_RANK_GATHER_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/lane/job.h"
#include "torch_bindings/csrc/collective_launch.h"
#include "torch_bindings/csrc/python_handle.h"
#include "torch_bindings/csrc/shape_message.h"

namespace pelton::torch_bindings {

// The ranks tell each other their shapes first, so that all of them know what follows, or that the
// tensors do not fit. Threads: one at a time. Owns: a reference to the input, and the messages.
class RankGather {
 public:
  struct Place {
    int rank;
    int world_size;
    BucketId bucket;     // by which names are compared
    OnStream on_stream;  // of the tensors; the shapes are the host's
  };

  RankGather(const Place& place, at::Tensor input);

  // Has each rank tell its shape to all.
  lane::Job::Launch Shapes();
  // One allgather where the tensors are equally long, else a broadcast of each that is not empty,
  // and the rest in `outcome`. Nothing where they do not fit.
  std::vector<lane::Job::Launch> Parts(Outcome& outcome) const;

 private:
  // The first difference from rank 0's, which all ranks see alike; "": there is none.
  std::string Difference() const;
  std::vector<lane::Job::Launch> Broadcasts(const at::Tensor& result) const;

  const Place place_;
  const at::Tensor input_;
  ShapeMessage mine_;
  std::vector<ShapeMessage> shapes_;  // by rank
};

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_RANK_GATHER_H_
