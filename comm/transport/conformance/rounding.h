// Comparing reductions that were added in another order than the reference.
#ifndef PELTON_COMM_TRANSPORT_CONFORMANCE_ROUNDING_H_
#define PELTON_COMM_TRANSPORT_CONFORMANCE_ROUNDING_H_

#include <cstddef>
#include <string>
#include <vector>

#include "comm/transport/conformance/exchange.h"

namespace pelton::conformance {

// "" if the elements of a reduction differ from `expected` by no more than what the order of n
// additions or multiplications explains, else the first that does. Only float32, float64 and
// complex may differ at all: 16-bit sums are rounded once, so that their order does not show.
std::string DifferenceBeyondRounding(const Exchange& exchange,
                                     const std::vector<std::byte>& expected,
                                     const std::byte* actual);

}  // namespace pelton::conformance

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_ROUNDING_H_
