// What ranks that gather tensors tell each other of them first.
#ifndef PELTON_TORCH_BINDINGS_CSRC_SHAPE_MESSAGE_H_
#define PELTON_TORCH_BINDINGS_CSRC_SHAPE_MESSAGE_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/collectives.h"

namespace pelton::torch_bindings {

inline constexpr int64_t kMostGatheredDimensions = 12;

// A tensor's type and shape in a form that is sent, with what the operation is called and where its
// elements follow. Threads: a value. Owns: nothing.
struct ShapeMessage {
  int64_t dtype = 0;
  int64_t dimensions = 0;
  uint64_t name = 0;     // a hash of the operation's name; 0: it has none
  int64_t data_tag = 0;  // of the messages with the elements
  std::array<int64_t, kMostGatheredDimensions> sizes = {};

  // Shape: 1 to kMostGatheredDimensions dimensions.
  static ShapeMessage Of(const at::Tensor& tensor);

  // Whether the two may be joined along the first dimension, under one name.
  bool FitsTo(const ShapeMessage& other) const;
  int64_t first() const { return sizes[0]; }
  uint64_t bytes() const;
  // "Float [2, 3]".
  std::string ToString() const;
  // Its own memory as what is sent. Shape: [kWords], int64.
  Tensor flat();

  static constexpr uint64_t kWords = 4 + kMostGatheredDimensions;
};
static_assert(sizeof(ShapeMessage) == ShapeMessage::kWords * sizeof(int64_t));

// "tensor: is Float [2, 3] on rank 0 and Float [2] on rank 1; ...", or of names that differ.
std::string DifferenceOf(const ShapeMessage& mine, int rank, const ShapeMessage& theirs, int peer);

// An uninitialised tensor of the type of `like` and its shape but for the first dimension.
at::Tensor EmptyGathered(const at::Tensor& like, int64_t first);

// The bytes of a contiguous tensor, of whatever type, wherever it is.
Tensor BytesOf(const at::Tensor& tensor);
// `count` of them from `offset` on.
Tensor PartOf(const Tensor& bytes, uint64_t offset, uint64_t count);

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_SHAPE_MESSAGE_H_
