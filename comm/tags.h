// Which code may use which tags. It matters because all users of a communicator's sends and
// receives share its wires.
#ifndef PELTON_COMM_TAGS_H_
#define PELTON_COMM_TAGS_H_

#include <cstdint>

namespace pelton {

// Tags from 0 on belong to the callers of send and receive. Negative tags are given out here and
// nowhere else, so that messages of different users never meet.

// Of comm/all_to_all_v.h.
inline constexpr int32_t kAllToAllVTag = -1;
// Of torch.distributed's operations in which ranks get different things (torch_bindings/csrc/c10d).
inline constexpr int32_t kExchangeTag = -2;
// Of its monitored barriers, to rank 0 and from it.
inline constexpr int32_t kReportTag = -3;
inline constexpr int32_t kAnswerTag = -4;

// Of the messages that collectives consist of (collectives/, hierarchy/). A communicator that sends
// them over the wires of its callers' messages refuses them to its callers.
inline constexpr int32_t kFirstCollectiveTag = INT32_MIN;
inline constexpr int32_t kLastCollectiveTag = INT32_MIN + 255;
// The last of them are of a transport whose own communicators run programs over their sends and
// receives (transport/shm/programs.h): communicators above it send with the ones before.
inline constexpr int32_t kFirstTransportProgramTag = kLastCollectiveTag - 63;

// Of neighbour operations (collectives/neighbor_communicator.h): one for each of their tags.
inline constexpr int32_t kNeighborTags = 1 << 30;
inline constexpr int32_t kFirstNeighborTag = kLastCollectiveTag + 1;

constexpr bool IsCollectiveTag(int32_t tag) { return tag <= kLastCollectiveTag; }

// What stands for a tensor's shape where only its number of elements is compared otherwise.

// A mark travels in a field that its operation does not need otherwise: in `tag` of a collective,
// in `sequence` of a neighbour operation, and in the offset of the memory that a message of one has
// not (a send's target, a receive's source). It is a hash of the shape, and positive.
inline constexpr int32_t kNoShapeMark = 0;  // shapes are not compared
// In place of a mark: this rank has no tensor, because an earlier stage has failed.
inline constexpr int32_t kFailedStageMark = -1;

}  // namespace pelton

#endif  // PELTON_COMM_TAGS_H_
