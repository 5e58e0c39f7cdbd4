#include "comm/transport/shm/shm_transport.h"

#include <sched.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group.h"
#include "comm/transport/shm/handshake.h"
#include "comm/transport/shm/links.h"
#include "comm/transport/shm/shm_communicator.h"
#include "comm/transport/shm/task_list.h"
#include "core/base/clock.h"
#include "core/base/long_wait.h"
#include "core/base/process_limits.h"
#include "core/base/sharing.h"
#include "core/base/status.h"
#include "core/base/sync.h"

namespace pelton {
namespace shm {
namespace {

// How often a rank that waits for others to open looks whether they are still alive.
constexpr absl::Duration kLookInterval = absl::Milliseconds(50);

// Cores that this process may run on.
int CoreCount() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// Threads: as Transport. Owns: the links, and through them the watching thread.
class ShmTransport final : public Transport {
 public:
  ShmTransport(Rank rank, std::vector<Peer> peers, KindSet native_kinds)
      : rank_(rank.value()),
        native_kinds_(native_kinds),
        links_(rank.value(), std::move(peers),
               [this](int peer, const absl::Status& reason) { Lose(peer, reason); }) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    RETURN_IF_ERROR(CheckGroup(group, WorldSize(links_.world_size()), Rank(rank_)));
    const std::string what =
        absl::StrCat("shm: rank ", rank_, ": opening communicator ", id.value());
    absl::StatusOr<Arena> arena = ShareArena(id, group, deadline);
    if (!arena.ok()) return Annotate(arena.status(), what);
    absl::Status joined = Join(*arena, group, deadline);
    if (!joined.ok()) return Annotate(joined, what);
    Context context{*arena,
                    links_,
                    group.RankOf(Rank(rank_))->value(),
                    {},
                    links_.world_size() <= CoreCount(),
                    native_kinds_};
    for (const Rank member : group.members) context.world_ranks.push_back(member.value());
    auto communicator = std::make_unique<ShmCommunicator>(
        id, group.generation, std::move(context),
        [this](ShmCommunicator* closed) { open_.Remove(closed); });
    Remember(communicator.get());
    return communicator;
  }

  void SayGoodbye() override { links_.SayGoodbye(); }

  void Abort(const absl::Status& reason) override {
    open_.ForEach([&](ShmCommunicator* communicator) { communicator->Abort(reason); });
  }

 private:
  // The group's rank 0 makes the control block and hands it to the others.
  absl::StatusOr<Arena> ShareArena(CommunicatorId id, const Group& group, absl::Time deadline) {
    const int first = group.members[0].value();
    Descriptor memory;
    if (first == rank_) {
      ASSIGN_OR_RETURN(memory, Arena::Create(id, group.generation, group.size()));
      for (const Rank member : group.members) {
        if (member.value() == rank_) continue;
        RETURN_IF_ERROR(links_.SendArena(member.value(), id, group.generation, memory.get()));
      }
    } else {
      ASSIGN_OR_RETURN(memory, links_.TakeArena(first, id, group.generation, deadline));
    }
    return Arena::Map(memory.get(), id, group.generation, group.size());
  }

  // Waits until every member has mapped it. Each has a word of its own, which decides, because one
  // that dies before it is counted in `joined` never will be; `joined` wakes those that wait.
  // collective_model_test.cc runs this in every order.
  absl::Status Join(const Arena& arena, const Group& group, absl::Time deadline) {
    std::atomic<uint32_t>& joined = arena.header().joined;
    arena.rank(group.RankOf(Rank(rank_))->value()).joined.store(1);
    joined.fetch_add(1);
    FutexWake(&joined, kAllSleepers, FutexScope::kShared);
    while (true) {
      const uint32_t count = joined.load();
      std::vector<int> missing;
      for (int i = 0; i < group.size().value(); ++i) {
        const int member = group.members[i].value();
        if (arena.rank(i).joined.load() == 0) missing.push_back(member);
      }
      if (missing.empty()) return absl::OkStatus();
      // Of any member: one that has joined may be what the missing ones have waited for.
      for (const Rank member : group.members) RETURN_IF_ERROR(links_.LossOf(member.value()));
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank(s) ", absl::StrJoin(missing, ", "), " have not opened it"));
      }
      RETURN_IF_ERROR(CheckInterrupt());
      FutexWait(&joined, count, std::min(left, kLookInterval), FutexScope::kShared);
    }
  }

  void Remember(ShmCommunicator* communicator) {
    open_.Add(communicator);
    for (int peer = 0; peer < links_.world_size(); ++peer) {
      // It may have died before we were in the list. Told twice is told once.
      const absl::Status loss = links_.LossOf(peer);
      if (!loss.ok()) Tell(*communicator, peer, loss);
    }
  }

  void Tell(ShmCommunicator& communicator, int peer, const absl::Status& reason) {
    // As ourselves, where it is this process that has no room for what the peer shares.
    if (absl::IsResourceExhausted(reason)) return communicator.Abort(reason);
    communicator.Lose({peer, links_.HasLeft(peer), reason});
  }

  void Lose(int peer, const absl::Status& reason) {
    open_.ForEach([&](ShmCommunicator* communicator) { Tell(*communicator, peer, reason); });
  }

  const int rank_;
  const KindSet native_kinds_;
  SharedList<ShmCommunicator*> open_;
  Links links_;  // last: its thread uses the others
};

}  // namespace
}  // namespace shm

absl::StatusOr<std::unique_ptr<Transport>> MakeShmTransport(const TransportOptions& options) {
  return MakeShmTransportOf(shm::kKindsWithTasks, options);
}

absl::StatusOr<std::unique_ptr<Transport>> MakeShmTransportOf(KindSet native_kinds,
                                                              const TransportOptions& options) {
  RaiseDescriptorLimit();
  ASSIGN_OR_RETURN(std::vector<shm::Peer> peers, shm::MeetPeers(options));
  return std::make_unique<shm::ShmTransport>(options.rank, std::move(peers), native_kinds);
}

REGISTER_TRANSPORT(shm, "shared memory between the ranks of one host", MakeShmTransport);

}  // namespace pelton
