// Which element types can be combined in which way.
#ifndef PELTON_COMM_REDUCTION_REDUCIBLE_H_
#define PELTON_COMM_REDUCTION_REDUCIBLE_H_

#include "absl/status/status.h"
#include "core/memory/dtype.h"

namespace pelton {

//                     SUM PRODUCT  AVG  MIN MAX  BOR BAND BXOR
//   floating point     x     x      x    x   x
//   integers           x     x      x    x   x    x   x    x
//   bool               x     x           x   x    x   x    x
//   complex            x     x      x
// Errors: InvalidArgument: names both; also for numbers outside the enumerations.
absl::Status CheckReducible(DType dtype, ReduceOp op);

}  // namespace pelton

#endif  // PELTON_COMM_REDUCTION_REDUCIBLE_H_
