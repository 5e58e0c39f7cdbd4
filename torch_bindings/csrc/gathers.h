// Gathers from Python whose parts have any length, and often other ones in each call.
#ifndef PELTON_TORCH_BINDINGS_CSRC_GATHERS_H_
#define PELTON_TORCH_BINDINGS_CSRC_GATHERS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/lane/job.h"
#include "core/pipeline/weight_table.h"
#include "torch_bindings/csrc/c10d/call.h"
#include "torch_bindings/csrc/outcome.h"
#include "torch_bindings/csrc/shape_message.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {

// A gather between neighbours whose tensors differ in their first dimensions.
// The two ends of an edge tell each other their shapes, in both directions, so that both know what
// does not fit. Then the elements follow, with a tag that their sender has chosen: calls without a
// name match by their order in the first step, and the second one may come in any.
// Threads: one at a time. Owns: a reference to the input, and the messages.
class NeighborGather {
 public:
  struct Place {
    int rank;
    int32_t tag;       // of the shapes
    int32_t data_tag;  // of this rank's elements: no other gather in flight has it
  };

  NeighborGather(const Place& place, uint64_t name, std::shared_ptr<const WeightTable> table,
                 at::Tensor input);

  std::vector<lane::Job::Launch> Shapes();
  // Puts what follows the shapes into `call`, and the rest into `outcome`; false: nothing follows.
  bool Parts(Call& call, Outcome& outcome);
  // The same for one operation of a communicator that has no tags: which edges it has, with as many
  // elements as there are bytes. What it reads is the input, and it writes `outcome.result`.
  std::shared_ptr<const WeightTable> Edges(Outcome& outcome) const;

 private:
  // Whether the elements of the edge with `peer` are moved; if not, `outcome` says why.
  bool Moves(int32_t peer, Outcome& outcome) const;
  // Makes place for what comes, and notes the sources' lengths.
  void MakeResult(Outcome& outcome) const;

  const Place place_;
  const std::shared_ptr<const WeightTable> table_;  // shared: as the job's
  const at::Tensor input_;
  ShapeMessage mine_;
  std::map<int32_t, ShapeMessage> theirs_;  // by rank: of all at the other ends of its edges
};

// An allgather of tensors that differ in their first dimensions.
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

#endif  // PELTON_TORCH_BINDINGS_CSRC_GATHERS_H_
