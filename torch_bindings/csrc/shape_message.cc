#include "torch_bindings/csrc/shape_message.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pelton::torch_bindings {

ShapeMessage ShapeMessage::Of(const at::Tensor& tensor) {
  ShapeMessage message;
  message.dtype = static_cast<int64_t>(tensor.scalar_type());
  message.dimensions = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), message.sizes.begin());
  return message;
}

bool ShapeMessage::FitsTo(const ShapeMessage& other) const {
  return dtype == other.dtype && dimensions == other.dimensions && name == other.name &&
         std::equal(sizes.begin() + 1, sizes.end(), other.sizes.begin() + 1);
}

uint64_t ShapeMessage::bytes() const {
  uint64_t count = c10::elementSize(static_cast<at::ScalarType>(dtype));
  for (int64_t i = 0; i < dimensions; ++i) {
    count *= static_cast<uint64_t>(sizes[static_cast<size_t>(i)]);
  }
  return count;
}

std::string ShapeMessage::ToString() const {
  return absl::StrCat(c10::toString(static_cast<at::ScalarType>(dtype)), " [",
                      absl::StrJoin(sizes.begin(), sizes.begin() + dimensions, ", "), "]");
}

Tensor ShapeMessage::flat() { return {this, kWords, DType::kInt64}; }

std::string DifferenceOf(const ShapeMessage& mine, int rank, const ShapeMessage& theirs, int peer) {
  if (mine.name != theirs.name) {
    return absl::StrCat("name: ranks ", rank, " and ", peer,
                        " call it by different names in this place; all must call alike");
  }
  return absl::StrCat("tensor: is ", mine.ToString(), " on rank ", rank, " and ", theirs.ToString(),
                      " on rank ", peer, "; all but the first dimension must be the same");
}

at::Tensor EmptyGathered(const at::Tensor& like, int64_t first) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes[0] = first;
  return at::empty(sizes, like.options().requires_grad(false));
}

Tensor BytesOf(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<uint64_t>(tensor.nbytes()), DType::kUInt8};
}

Tensor PartOf(const Tensor& bytes, uint64_t offset, uint64_t count) {
  return {static_cast<std::byte*>(bytes.data) + offset, count, bytes.dtype};
}

}  // namespace pelton::torch_bindings
