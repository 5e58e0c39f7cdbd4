// The two wires of a rank of several hosts' group, as one runner: each operation takes the one that
// reaches its peer.
#ifndef PELTON_COMM_HIERARCHY_WIRES_H_
#define PELTON_COMM_HIERARCHY_WIRES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/collectives/program_run.h"
#include "comm/communicator.h"
#include "comm/hierarchy/layout.h"
#include "comm/tags.h"
#include "core/pipeline/operation.h"

namespace pelton::hierarchy {

// Tags of the messages that collectives send on a group's wires (comm/tags.h has everybody's).

// Of the stages with even and with odd numbers.
inline constexpr int32_t kStageTags[] = {kFirstProgramTag, kFirstProgramTag + kMaxProgramStrands};
inline constexpr int32_t kStepTag = kFirstProgramTag + 2 * kMaxProgramStrands;
inline constexpr int32_t kRollCallTag = kStepTag + 1;
static_assert(kRollCallTag < kFirstTransportProgramTag);

// Sends and receives name their peer by its number in the group; any other operation is a
// collective of this host's ranks, with their numbers there. A completion names the operation's
// wire, too, and is no count of launches. Statuses speak of ranks of the group, or say that they do
// not.
// Threads: as OperationRunner. Owns: both communicators.
class Wires final : public OperationRunner {
 public:
  // `inside`: of the ranks on this host, in the layout's order; null for a rank that is alone.
  // `between`: of the whole group.
  Wires(const Layout& layout, std::unique_ptr<Communicator> inside,
        std::unique_ptr<Communicator> between);

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override;
  // As Communicator's.
  absl::StatusOr<std::optional<Rank>> FindSender(int32_t tag);
  bool Progress() override;
  State Query(Completion completion) override;
  // Sleeps on one wire after the other, shortly, as no call waits for both.
  void Park(absl::Time until) override;
  void Wake() override;
  void Abort(const absl::Status& reason) override;
  // Whom the oldest message between hosts waits for; if none does, whom the oldest operation inside
  // this one waits for.
  std::vector<Rank> Missing() const override;

  int spins() const;
  absl::Status Register(const Region& region);
  void Deregister(RegionId region);
  // Whether nothing is in flight.
  bool IsIdle();
  // Ends both communicators: peers do not reach the memory of what was in flight any more. Nothing
  // but Deregister may be called afterwards.
  void Close();

 private:
  absl::StatusOr<std::optional<Rank>> FindSenderInside(int32_t tag);
  absl::Status InTermsOfGroup(const absl::Status& status, bool is_inside) const;
  void ForgetDone();

  const Layout& layout_;
  std::unique_ptr<Communicator> inside_;
  std::unique_ptr<Communicator> between_;
  std::deque<Completion> in_flight_;
  bool parks_inside_ = false;
};

}  // namespace pelton::hierarchy

#endif  // PELTON_COMM_HIERARCHY_WIRES_H_
