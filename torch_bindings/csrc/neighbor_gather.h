// A gather between neighbours whose tensors differ in their first dimensions.
#ifndef PELTON_TORCH_BINDINGS_CSRC_NEIGHBOR_GATHER_H_
#define PELTON_TORCH_BINDINGS_CSRC_NEIGHBOR_GATHER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "comm/lane/job.h"
#include "core/pipeline/weight_table.h"
#include "torch_bindings/csrc/c10d/call.h"
#include "torch_bindings/csrc/python_handle.h"
#include "torch_bindings/csrc/shape_message.h"

namespace pelton::torch_bindings {

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
  const at::Tensor& input() const { return input_; }

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

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_NEIGHBOR_GATHER_H_
