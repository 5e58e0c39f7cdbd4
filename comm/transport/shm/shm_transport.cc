#include "comm/transport/shm/shm_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/group.h"
#include "comm/transport/shm/context.h"
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

// How often a rank that waits for others to open looks whether they are still alive, and whether
// one has given up.
constexpr absl::Duration kLookInterval = absl::Milliseconds(50);

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
        absl::StrCat("shm: rank ", links_.name(rank_), ": opening communicator ", id.value());
    absl::StatusOr<Context> context = Meet(id, group, deadline);
    if (!context.ok()) {
      TellOthers(id, group, context.status());
      return Annotate(context.status(), what);
    }
    auto communicator = std::make_unique<ShmCommunicator>(
        id, group.generation, *std::move(context),
        [this](ShmCommunicator* closed) { open_.Remove(closed); });
    Remember(communicator.get());
    return communicator;
  }

  void SayGoodbye() override { links_.SayGoodbye(); }

  void Abort(const absl::Status& reason) override {
    open_.ForEach([&](ShmCommunicator* communicator) { communicator->Abort(reason); });
  }

 private:
  absl::StatusOr<Context> Meet(CommunicatorId id, const Group& group, absl::Time deadline) {
    static const int cores = UsableCores();
    ASSIGN_OR_RETURN(Arena arena, ShareArena(id, group, deadline));
    Context context{std::move(arena),
                    links_,
                    group.RankOf(Rank(rank_))->value(),
                    {},
                    links_.world_size() <= cores,
                    native_kinds_};
    for (const Rank member : group.members) context.world_ranks.push_back(member.value());
    const absl::Status joined = Join(context.arena, id, group, deadline);
    if (joined.ok()) return context;
    // So that a late one does not find all of them there. One that has done so already goes on with
    // the communicator, and its first operation says why that has ended.
    context.arena.rank(context.rank).joined.store(kHasGivenUp);
    AbortSwitch(context).Throw(joined, /*is_death=*/false);
    return joined;
  }

  // What another member has told of its end; OK: nothing.
  absl::Status FailureAmong(CommunicatorId id, const Group& group) const {
    for (const Rank member : group.members) {
      RETURN_IF_ERROR(links_.OpenFailureOf(member.value(), id, group.generation));
    }
    return absl::OkStatus();
  }

  // Nothing where this rank has given up because another one has, which has told all of them.
  void TellOthers(CommunicatorId id, const Group& group, const absl::Status& why) {
    if (!FailureAmong(id, group).ok()) return;
    for (const Rank member : group.members) {
      links_.TellOpenFailed(member.value(), id, group.generation, why);
    }
  }

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
      ASSIGN_OR_RETURN(memory, links_.TakeArena(group.members, id, group.generation, deadline));
    }
    return Arena::Map(memory.get(), id, group.generation, group.size());
  }

  // Waits until every member has mapped it. Each has a word of its own, which decides, because one
  // that dies before it is counted in `joined` never will be; `joined` wakes those that wait.
  // collective_model_test.cc runs this in every order.
  absl::Status Join(const Arena& arena, CommunicatorId id, const Group& group,
                    absl::Time deadline) {
    std::atomic<uint32_t>& joined = arena.header().joined;
    arena.rank(group.RankOf(Rank(rank_))->value()).joined.store(kHasJoined);
    joined.fetch_add(1);
    FutexWake(&joined, kAllSleepers, FutexScope::kShared);
    while (true) {
      const uint32_t count = joined.load();
      std::vector<int> missing;
      bool are_there = true;
      for (int i = 0; i < group.size().value(); ++i) {
        const uint32_t word = arena.rank(i).joined.load();
        if (word == kNotYet) missing.push_back(links_.name(group.members[i].value()));
        are_there &= word == kHasJoined;
      }
      if (are_there) return absl::OkStatus();
      RETURN_IF_ERROR(FailureAmong(id, group));
      // Of any member: one that has joined may be what the missing ones have waited for.
      for (const Rank member : group.members) RETURN_IF_ERROR(links_.LossOf(member.value()));
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(
            missing.empty()
                ? "another rank has given up opening it"
                : absl::StrCat("rank(s) ", absl::StrJoin(missing, ", "), " have not opened it"));
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
