// How some of a job's ranks meet to make a transport of their own.
#ifndef PELTON_BACKEND_GROUP_BOOTSTRAP_H_
#define PELTON_BACKEND_GROUP_BOOTSTRAP_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/transport/transport.h"
#include "core/base/ids.h"

namespace pelton {

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

}  // namespace pelton

#endif  // PELTON_BACKEND_GROUP_BOOTSTRAP_H_
