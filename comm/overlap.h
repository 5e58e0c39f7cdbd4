// Which tensors a collective can work on when they share memory.
#ifndef PELTON_COMM_OVERLAP_H_
#define PELTON_COMM_OVERLAP_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/ids.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Whether `source` and `target` share memory in another way than the collective's own form of "in
// place" on `rank`: then it would read what it has already overwritten. Who may copy passes a copy
// of the source instead; the functions of collectives.h refuse.
bool Clash(OperationKind kind, Rank rank, absl::Span<const std::byte> source,
           absl::Span<const std::byte> target);

// Which form that is, for error texts.
absl::string_view InPlaceFormOf(OperationKind kind);

}  // namespace pelton

#endif  // PELTON_COMM_OVERLAP_H_
