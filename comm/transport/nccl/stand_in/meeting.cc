#include "comm/transport/nccl/stand_in/meeting.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/socket.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton::stand_in {
namespace {

// How soon a rank that waits sees that it need not any more.
constexpr absl::Duration kLookInterval = absl::Milliseconds(20);

absl::Status Say(int socket, int rank, const std::string& value) {
  shm::Frame frame;
  frame.type = shm::Frame::kHello;
  frame.rank = rank;
  return shm::Send(socket, frame, value);
}

// Rank 0 may not listen yet, and the kernel does not tell when it does.
absl::StatusOr<Descriptor> TryToConnect(const std::string& name, absl::Time deadline) {
  constexpr int kRetryMs = 2;
  absl::StatusOr<Descriptor> connection = shm::Connect(name, deadline);
  if (!absl::IsUnavailable(connection.status())) return connection;
  poll(nullptr, 0, kRetryMs);
  return absl::DeadlineExceededError(
      absl::StrCat("rank(s) 0 have not come: ", connection.status().message()));
}

constexpr char kPrefix[] = "stand-in-";

}  // namespace

// Calls `attempt` with near deadlines until it does anything else than run past them.
template <typename Attempt>
auto Meeting::Patiently(absl::Time deadline, Attempt attempt) -> decltype(attempt(deadline)) {
  while (true) {
    const absl::Time now = Clock::Real().Now();
    auto result = attempt(std::min(deadline, now + kLookInterval));
    if (!absl::IsDeadlineExceeded(result.status()) || now >= deadline) return result;
    if (cancelled_) return absl::CancelledError("nobody wants to meet any more");
  }
}

absl::StatusOr<std::unique_ptr<Meeting>> Meeting::Attend(const Place& place,
                                                         const std::atomic<bool>& cancelled,
                                                         absl::Time deadline) {
  auto meeting = std::unique_ptr<Meeting>(new Meeting(place, cancelled));
  meeting->sockets_.resize(static_cast<size_t>(place.rank_count));
  if (place.rank_count > 1) {
    RETURN_IF_ERROR(
        Annotate(place.rank == 0 ? meeting->AcceptAll(deadline) : meeting->ConnectToFirst(deadline),
                 absl::StrCat("rank ", place.rank, " of ", place.rank_count)));
  }
  return meeting;
}

absl::Status Meeting::AcceptAll(absl::Time deadline) {
  ASSIGN_OR_RETURN(const Descriptor listener, shm::Listen(place_.name, place_.rank_count));
  for (int left = place_.rank_count - 1; left > 0; --left) {
    absl::StatusOr<Descriptor> socket =
        Patiently(deadline, [&](absl::Time until) { return shm::Accept(listener.get(), until); });
    if (absl::IsDeadlineExceeded(socket.status())) {
      std::vector<int> missing;
      for (int peer = 1; peer < place_.rank_count; ++peer) {
        if (!sockets_[static_cast<size_t>(peer)].is_open()) missing.push_back(peer);
      }
      return absl::DeadlineExceededError(
          absl::StrCat("rank(s) ", absl::StrJoin(missing, ", "), " have not come"));
    }
    RETURN_IF_ERROR(socket.status());
    ASSIGN_OR_RETURN(const shm::Message hello, Patiently(deadline, [&](absl::Time until) {
                       return shm::Receive(socket->get(), until);
                     }));
    const int peer = hello.frame.rank;
    if (peer <= 0 || peer >= place_.rank_count || sockets_[static_cast<size_t>(peer)].is_open()) {
      return absl::InvalidArgumentError(absl::StrCat("a process says that it is rank ", peer));
    }
    sockets_[static_cast<size_t>(peer)] = *std::move(socket);
  }
  return absl::OkStatus();
}

absl::Status Meeting::ConnectToFirst(absl::Time deadline) {
  ASSIGN_OR_RETURN(sockets_[0], Patiently(deadline, [&](absl::Time until) {
                     return TryToConnect(place_.name, until);
                   }));
  return Say(sockets_[0].get(), place_.rank, "");
}

absl::StatusOr<std::vector<std::string>> Meeting::AllGather(const std::string& key,
                                                            const std::string& value,
                                                            absl::Time deadline) {
  const std::string what = absl::StrCat("rank ", place_.rank, ": gathering ", key);
  if (place_.rank == 0) {
    auto values = Collect(value, deadline);
    return values.ok() ? std::move(values) : Annotate(values.status(), what);
  }
  RETURN_IF_ERROR(Annotate(Say(sockets_[0].get(), place_.rank, value), what));
  std::vector<std::string> values;
  while (values.size() < sockets_.size()) {
    absl::StatusOr<std::string> next = Hear(0, deadline);
    if (!next.ok()) return Annotate(next.status(), what);
    values.push_back(*std::move(next));
  }
  return values;
}

absl::StatusOr<std::vector<std::string>> Meeting::Collect(const std::string& value,
                                                          absl::Time deadline) {
  std::vector<std::string> values = {value};
  for (int peer = 1; peer < place_.rank_count; ++peer) {
    ASSIGN_OR_RETURN(values.emplace_back(), Hear(peer, deadline));
  }
  for (int peer = 1; peer < place_.rank_count; ++peer) {
    for (int rank = 0; rank < place_.rank_count; ++rank) {
      const auto index = static_cast<size_t>(rank);
      RETURN_IF_ERROR(Say(sockets_[static_cast<size_t>(peer)].get(), rank, values[index]));
    }
  }
  return values;
}

absl::StatusOr<std::string> Meeting::Hear(int peer, absl::Time deadline) {
  absl::StatusOr<shm::Message> message = Patiently(deadline, [&](absl::Time until) {
    return shm::Receive(sockets_[static_cast<size_t>(peer)].get(), until);
  });
  if (!message.ok()) return Annotate(message.status(), absl::StrCat("rank ", peer));
  return std::move(message->payload);
}

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
