// What stands for a tensor's shape where only its number of elements is compared otherwise.
#ifndef PELTON_COMM_SHAPE_MARK_H_
#define PELTON_COMM_SHAPE_MARK_H_

#include <cstdint>

namespace pelton {

// A mark travels in a field that its operation does not need otherwise: in `tag` of a collective,
// in `sequence` of a neighbour operation, and in the offset of the memory that a message of one has
// not (a send's target, a receive's source). It is a hash of the shape, and positive.
inline constexpr int32_t kNoShapeMark = 0;  // shapes are not compared
// In place of a mark: this rank has no tensor, because an earlier stage has failed.
inline constexpr int32_t kFailedStageMark = -1;

}  // namespace pelton

#endif  // PELTON_COMM_SHAPE_MARK_H_
