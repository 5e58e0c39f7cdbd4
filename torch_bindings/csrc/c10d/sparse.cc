// The sum of sparse tensors, whose ranks have different numbers of elements.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/collectives.h"
#include "torch_bindings/csrc/c10d/process_group.h"
#include "torch_bindings/csrc/c10d/rules.h"
#include "torch_bindings/csrc/status_to_exception.h"
#include "torch_bindings/csrc/tensors.h"

namespace pelton::torch_bindings {
namespace {

// What a rank tells of its tensor: number of its elements, of its sparse dimensions, sizes.
constexpr int64_t kMostDimensions = 14;
constexpr int64_t kWordsPerRank = 2 + kMostDimensions;

Tensor FlatOf(const at::Tensor& tensor) { return ValueOrThrow(Flat(tensor, "tensor")); }

// One call on one rank. First every rank says how many elements it has; then each broadcasts its
// indices and its values; in the end all add the same tensors in the same order.
// Threads: one. Owns: references to the tensors.
class SparseSum {
 public:
  SparseSum(const at::Tensor& target, int rank, int world_size, bool is_mean)
      : target_(target),
        own_(target.detach().coalesce()),
        is_mean_(is_mean),
        rank_(rank),
        facts_(at::zeros({world_size, kWordsPerRank}, at::kLong)),
        own_facts_(at::zeros({kWordsPerRank}, at::kLong)) {
    own_facts_[0] = own_._nnz();
    own_facts_[1] = own_.sparse_dim();
    for (int64_t i = 0; i < own_.dim(); ++i) own_facts_[2 + i] = own_.size(i) + 1;
  }

  lane::Job::Launch ExchangeFacts() {
    return [source = FlatOf(own_facts_), target = FlatOf(facts_)](Communicator& communicator) {
      return AllGather(communicator, source, target);
    };
  }

  // Nothing the second time.
  std::vector<lane::Job::Launch> ExchangeElements() {
    std::vector<lane::Job::Launch> launches;
    if (!indices_.empty()) return launches;
    CheckFacts();
    for (int64_t rank = 0; rank < facts_.size(0); ++rank) {
      AddRank(static_cast<int32_t>(rank), launches);
    }
    return launches;
  }

  void Store() const {
    at::Tensor sum =
        at::sparse_coo_tensor(at::cat(indices_, 1), at::cat(values_, 0), own_.sizes()).coalesce();
    if (is_mean_) sum = sum.div(static_cast<int64_t>(values_.size()));
    const at::NoGradGuard guard;
    at::Tensor(target_).copy_(sum);
  }

 private:
  // All ranks come to the same answer, because all see the same facts.
  void CheckFacts() const {
    const at::Tensor shapes = facts_.narrow(1, 1, kWordsPerRank - 1);
    for (int64_t rank = 1; rank < shapes.size(0); ++rank) {
      if (shapes[0].equal(shapes[rank])) continue;
      ThrowStatus(absl::InvalidArgumentError(
          absl::StrCat("the sparse tensors of rank 0 and of rank ", rank, " differ in shape")));
    }
  }

  void AddRank(int32_t rank, std::vector<lane::Job::Launch>& launches) {
    const int64_t count = facts_[rank][0].item<int64_t>();
    std::vector<int64_t> shape = own_.values().sizes().vec();
    shape[0] = count;
    const bool is_own = rank == rank_;
    indices_.push_back(is_own ? own_.indices().contiguous()
                              : at::empty({own_.sparse_dim(), count}, at::kLong));
    values_.push_back(is_own ? own_.values().contiguous()
                             : at::empty(shape, own_.values().options()));
    for (const at::Tensor& tensor : {indices_.back(), values_.back()}) {
      launches.push_back([flat = FlatOf(tensor), rank](Communicator& communicator) {
        return Broadcast(communicator, flat, Rank(rank));
      });
    }
  }

  const at::Tensor target_;
  const at::Tensor own_;
  const bool is_mean_;
  const int rank_;
  const at::Tensor facts_;  // [world_size, kWordsPerRank]
  const at::Tensor own_facts_;
  std::vector<at::Tensor> indices_;
  std::vector<at::Tensor> values_;
};

}  // namespace

ProcessGroup::Work ProcessGroup::AllReduceSparse(Tensors& tensors,
                                                 const ::c10d::AllreduceOptions& options) {
  Call call = Begin("all_reduce", Call::Use::kReduced);
  const at::Tensor& tensor = Only(call, "tensors", tensors);
  const ReduceOp op = OpOf(call, options.reduceOp);
  if (op != ReduceOp::kSum && op != ReduceOp::kAvg) {
    call.Refuse("op: sparse tensors know SUM and AVG only; call to_dense() first");
  }
  if (!tensor.device().is_cpu() || tensor.dim() > kMostDimensions) {
    call.Refuse(absl::StrCat("tensor: is on ", tensor.device().str(), " and has ", tensor.dim(),
                             " dimensions; must be on the CPU and have at most ", kMostDimensions));
  }
  // Shared: each of the call's steps may be the last.
  const auto sum = std::make_shared<SparseSum>(tensor, getRank(), getSize(), op == ReduceOp::kAvg);
  call.Launch(sum->ExchangeFacts());
  call.Continue([sum] { return sum->ExchangeElements(); });
  call.Finally([sum] { sum->Store(); }, /*lasts=*/true);
  return Submit(std::move(call),
                {::c10d::OpType::_ALLREDUCE_SPARSE, options.timeout, options.asyncOp}, tensors,
                {tensors});
}

}  // namespace pelton::torch_bindings
