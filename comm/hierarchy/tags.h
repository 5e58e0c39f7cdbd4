// Tags of the messages that collectives send on a group's wires (comm/tags.h has everybody's).
#ifndef PELTON_COMM_HIERARCHY_TAGS_H_
#define PELTON_COMM_HIERARCHY_TAGS_H_

#include <cstdint>

#include "comm/collectives/program_run.h"
#include "comm/tags.h"

namespace pelton::hierarchy {

// Of the stages with even and with odd numbers.
inline constexpr int32_t kStageTags[] = {kFirstProgramTag, kFirstProgramTag + kMaxProgramLanes};
inline constexpr int32_t kStepTag = kFirstProgramTag + 2 * kMaxProgramLanes;
inline constexpr int32_t kRollCallTag = kStepTag + 1;
static_assert(kRollCallTag < kFirstTransportProgramTag);

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_TAGS_H_
