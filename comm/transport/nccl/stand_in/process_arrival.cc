#include "comm/transport/nccl/stand_in/process_arrival.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "comm/group.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/socket.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::stand_in {
namespace {

constexpr char kPrefix[] = "stand-in-";

}  // namespace

std::string NewPlaceName() { return absl::StrCat(kPrefix, shm::RandomAddress()); }

bool IsPlaceName(const std::string& id) { return absl::StartsWith(id, kPrefix); }

ProcessArrival::ProcessArrival(const Place& place, absl::Duration patience) : place_(place) {
  const absl::Time deadline = Clock::Real().Now() + patience;
  thread_ = std::thread([this, deadline] {
    const absl::Status met = Meet(deadline);
    MutexLock lock(&mutex_);
    failure_ = met;
  });
}

ProcessArrival::~ProcessArrival() {
  cancelled_ = true;
  thread_.join();
}

absl::Status ProcessArrival::Meet(absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Meeting> meeting,
                   Meeting::Attend(place_, cancelled_, deadline));
  const WorldSize world_size(place_.rank_count);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Transport> transport,
      MakeShmTransport({Rank(place_.rank), world_size, place_.name, meeting.get(), deadline}));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                   transport->Open(CommunicatorId(1), Group::World(world_size), deadline));
  MutexLock lock(&mutex_);
  transport_ = std::move(transport);
  communicator_ = std::move(communicator);
  has_met_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Communicator>> ProcessArrival::Take() {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  if (!has_met_) return nullptr;
  return std::move(communicator_);
}

}  // namespace pelton::stand_in
