// Which ranks of a job share a host: found out and proved, never believed from the environment.
#ifndef PELTON_BACKEND_HOSTS_H_
#define PELTON_BACKEND_HOSTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/control/control.h"
#include "comm/group.h"
#include "comm/transport/transport.h"
#include "core/base/ids.h"

namespace pelton {

// How some of a job's ranks meet to make a transport of their own.
// The bootstrap of `members`. `prefix` tells its keys from those of other transports of the same
// ranks. Threads: as Bootstrap. Owns: its texts and its list; the control outlives it.
class GroupBootstrap final : public Bootstrap {
 public:
  GroupBootstrap(Control& control, std::vector<Rank> members, std::string prefix = "")
      : control_(control), members_(std::move(members)), prefix_(std::move(prefix)) {}

  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override {
    return control_.AllGatherAmong({absl::StrCat(prefix_, key), value, members_}, deadline);
  }

 private:
  Control& control_;
  const std::vector<Rank> members_;
  const std::string prefix_;
};

// Where the ranks of a job are. Threads: a value. Owns: its list.
struct HostMap {
  std::vector<int32_t> host_of;  // by rank: the lowest rank of its host; the same on all ranks

  bool is_one_host() const;
  // Whether `ranks` all are on the host of `rank`.
  bool AreWith(Rank rank, absl::Span<const Rank> ranks) const;
  // Ranks on the host of `rank`, ascending.
  std::vector<Rank> RanksWith(Rank rank) const;
  // The members of `group` on the host of `rank`, in the group's order.
  std::vector<Rank> IntraRanks(const Group& group, Rank rank) const;
};

// Threads: a value. Owns: the transport.
struct FoundHosts {
  HostMap map;
  std::unique_ptr<Transport> inside;  // of this host's ranks, by their numbers there
  std::string warning;                // why ranks that seemed to share this host do not; "": none
};

struct HostSearch {
  Control* control = nullptr;  // borrowed for the search
  const Membership* membership = nullptr;
  Rank rank;
  std::string job_token;
  absl::Time deadline;
};

// Groups the ranks by what they say of themselves (boot id and network namespace), then has each
// such host prove it: its ranks connect, pass each other memory with a nonce and read it back (the
// shared memory transport's handshake). Where that fails on any of its ranks none of them is
// believed, and each becomes a host of its own. Collective over the job. Blocks: until all ranks
// have called, or the deadline. Errors: those of Control::AllGather.
absl::StatusOr<FoundHosts> FindHosts(const HostSearch& search);

}  // namespace pelton

#endif  // PELTON_BACKEND_HOSTS_H_
