#include "comm/window/window.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "comm/window/edge_runs.h"
#include "core/actor/wait_hook.h"
#include "core/base/limits.h"
#include "core/base/moving_deadline.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// An owner's rank answers at the deadline, and names the rank that has the mutex. This is the time
// that it gets for its answer.
constexpr absl::Duration kAnswerTime = absl::Seconds(1);

}  // namespace

// The kernel knows where the mutexes are that a thread holds, so none may go while it is held.
RemoteEnd::~RemoteEnd() {
  if (has_ours_.load()) (void)ours_.Unlock();
  link_.StopServing(window_);
}

LinkQuestion RemoteEnd::QuestionOf(LinkCall call) const {
  LinkQuestion question;
  question.request.call = call;
  question.request.window = window_;
  return question;
}

Future<bool> RemoteEnd::StartWrite(const EdgeWrite::What& what) {
  LinkQuestion question = QuestionOf(what.adds ? LinkCall::kAccumulate : LinkCall::kPut);
  question.value = what.source;
  question.request.value_bytes = what.count * SizeOf(what.dtype);
  question.request.weight = what.weight;
  question.request.has_p = what.p.has_value() ? 1 : 0;
  question.request.p = what.p.value_or(0);
  return link_.Ask(question);
}

absl::Status RemoteEnd::Fill(const EdgeView& inlet, const EdgeFill::What& what,
                             const MovingDeadline& deadline) {
  const int number = inlet.inlet->BeginFill();
  RETURN_IF_ERROR(inlet.Provide(number));
  std::byte* const buffer = inlet.buffer(number);
  LinkQuestion question = QuestionOf(LinkCall::kGet);
  question.target = buffer;
  question.request.value_bytes = what.count * SizeOf(what.dtype);
  RETURN_IF_ERROR(link_.AwaitTransfer(link_.Ask(question), deadline));
  const Term term{buffer, what.weight, what.dtype};
  if (what.weight != 1) WeightedSum({&term, 1}, buffer, what.count, what.dtype);
  inlet.inlet->Fill(number);
  return absl::OkStatus();
}

absl::StatusOr<bool> RemoteEnd::AskForMutex(const LinkQuestion& question,
                                            const MovingDeadline& deadline) {
  return link_.AwaitMutex(link_.Ask(question), deadline + kAnswerTime);
}

// The owner is told how long it may take.
absl::StatusOr<bool> RemoteEnd::AskUntil(LinkQuestion question, const MovingDeadline& deadline) {
  return pelton::AskUntil(deadline, WaitClock(), [&](absl::Time until) {
    const absl::Duration wait = std::max(until - WaitClock().Now(), absl::ZeroDuration());
    question.request.wait_ns = absl::ToInt64Nanoseconds(wait);
    return AskForMutex(question, deadline);
  });
}

absl::Status RemoteEnd::Lock(Rank taker, const MovingDeadline& deadline) {
  RETURN_IF_ERROR(ours_.Lock(taker, deadline));
  const absl::StatusOr<bool> locked = AskUntil(QuestionOf(LinkCall::kLock), deadline);
  has_ours_.store(locked.ok());
  if (!locked.ok()) RETURN_IF_ERROR(ours_.Unlock());
  return locked.status();
}

absl::StatusOr<bool> RemoteEnd::TryLock(Rank taker) {
  if (!ours_.TryLock(taker)) return false;
  const absl::StatusOr<bool> locked =
      AskForMutex(QuestionOf(LinkCall::kTryLock), WaitClock().Now() + kAnswerTime);
  has_ours_.store(locked.ok() && *locked);
  if (!has_ours_.load()) RETURN_IF_ERROR(ours_.Unlock());
  return locked;
}

absl::Status RemoteEnd::Unlock() {
  // A thread that does not have it is refused here. If another thread of this rank asks meanwhile,
  // the owner's rank gives it the mutex only after it has handled the unlocking.
  const bool has_it = has_ours_.exchange(false);
  if (const absl::Status given = ours_.Unlock(); !given.ok()) {
    has_ours_.store(has_it);  // another thread's
    return given;
  }
  const absl::Status unlocked =
      AskForMutex(QuestionOf(LinkCall::kUnlock), WaitClock().Now() + limits::kStopTimeout).status();
  // The mutex was the other rank's and has gone with it, so that a last call is not an error
  // because its owner leaves as soon as it has the value.
  return absl::IsUnavailable(unlocked) ? absl::OkStatus() : unlocked;
}

namespace {

// What went wrong at several edges, as one error of the first one's kind.
// Threads: one. Owns: the texts.
class EdgeFailures {
 public:
  void Add(Rank rank, const absl::Status& status) {
    if (status.ok()) return;
    if (first_.ok()) first_ = status;
    texts_.push_back(absl::StrCat("edge with rank ", rank.value(), ": ", status.message()));
  }
  absl::Status ToStatus(const std::string& window) const {
    if (first_.ok()) return first_;
    return absl::Status(first_.code(),
                        absl::StrCat("window '", window, "': ", absl::StrJoin(texts_, "; ")));
  }

 private:
  absl::Status first_;
  std::vector<std::string> texts_;
};

std::string ListOf(const std::vector<Rank>& ranks) {
  return absl::StrCat(
      "[",
      absl::StrJoin(ranks, ", ",
                    [](std::string* text, Rank rank) { absl::StrAppend(text, rank.value()); }),
      "]");
}

bool IsMean(double own_weight, absl::Span<const Neighbor> sources) {
  const auto count = static_cast<double>(sources.size() + 1);
  const auto is_share = [&](double weight) { return std::abs(weight * count - 1) < 1e-9; };
  return sources.size() > 0 && is_share(own_weight) &&
         std::all_of(sources.begin(), sources.end(),
                     [&](const Neighbor& source) { return is_share(source.weight); });
}

}  // namespace

Window::Window(Rank rank, WindowOptions options, WindowMemory memory,
               std::shared_ptr<const PeerProcesses> processes)
    : rank_(rank),
      options_(std::move(options)),
      memory_(std::move(memory)),
      processes_(std::move(processes)) {}

Window::~Window() = default;

EdgeView Window::edge_to(Rank destination) const {
  const NeighborEnd& end = near_ends_.at(destination);
  return end.memory.edge(static_cast<uint64_t>(end.inlet_of_ours));
}

size_t Window::InletOf(Rank source) const {
  const std::vector<Rank>& sources = options_.sources;
  return static_cast<size_t>(std::lower_bound(sources.begin(), sources.end(), source) -
                             sources.begin());
}

absl::Status Window::CheckSource(const Tensor& source) const {
  if (source.dtype == options_.tensor.dtype && source.count == options_.tensor.count) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor: ", source.count, " elements of ", NameOf(source.dtype), "; window '", options_.name,
      "' has ", options_.tensor.count, " of ", NameOf(options_.tensor.dtype)));
}

absl::Status Window::CheckWeights(absl::Span<const Neighbor> neighbors,
                                  const std::vector<Rank>& among, absl::string_view what) const {
  std::optional<Rank> last;
  for (const Neighbor& neighbor : neighbors) {
    if (!std::binary_search(among.begin(), among.end(), neighbor.rank)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": rank ", neighbor.rank.value(),
                                                     " is none of window '", options_.name,
                                                     "', which has ", ListOf(among)));
    }
    if (last.has_value() && neighbor.rank <= *last) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": rank ", neighbor.rank.value(), " is twice there or not ascending"));
    }
    last = neighbor.rank;
    RETURN_IF_ERROR(Annotate(CheckWindowWeight(options_.tensor.dtype, neighbor.weight),
                             absl::StrCat(what, ", rank ", neighbor.rank.value())));
  }
  return absl::OkStatus();
}

absl::Status Window::Write(const Tensor& source, absl::Span<const Neighbor> destinations,
                           double own_weight, const WindowAccess& access, bool adds) {
  RETURN_IF_ERROR(CheckSource(source));
  RETURN_IF_ERROR(CheckWeights(destinations, options_.destinations, "destinations"));
  RETURN_IF_ERROR(Annotate(CheckWindowWeight(source.dtype, own_weight), "the window's own weight"));
  EdgeWrite::What what;
  what.source = static_cast<const std::byte*>(source.data);
  what.count = source.count;
  what.dtype = source.dtype;
  what.adds = adds;
  const absl::Status written = WriteToAll(destinations, what, access);
  if (options_.sent_bytes != nullptr) {
    options_.sent_bytes->fetch_add(destinations.size() * source.count * SizeOf(source.dtype),
                                   std::memory_order_relaxed);
  }
  if (own_weight != 1) {
    const Term own{what.source, own_weight, source.dtype};
    WeightedSum({&own, 1}, static_cast<std::byte*>(source.data), source.count, source.dtype);
    double seen = p_.load();
    while (access.with_p && !p_.compare_exchange_weak(seen, seen * own_weight)) {
    }
  }
  return written;
}

// Values for far ranks are on their way while those for near ones are copied.
absl::Status Window::WriteToAll(absl::Span<const Neighbor> destinations, EdgeWrite::What what,
                                const WindowAccess& access) {
  const double p = this->p();
  const auto prepare = [&](const Neighbor& destination) {
    what.weight = destination.weight;
    if (access.with_p) what.p = destination.weight * p;
    return RemoteOf(destination.rank);
  };
  std::vector<Future<bool>> under_way(destinations.size());
  for (size_t i = 0; i < destinations.size() && !access.with_mutex; ++i) {
    RemoteEnd* const far = prepare(destinations[i]);
    if (far != nullptr) under_way[i] = far->StartWrite(what);
  }
  std::vector<absl::Status> results(destinations.size());
  for (size_t i = 0; i < destinations.size(); ++i) {
    if (under_way[i].valid()) continue;
    RemoteEnd* const far = prepare(destinations[i]);
    results[i] =
        far != nullptr ? WriteFar(*far, what, access) : WriteTo(destinations[i], what, access);
  }
  EdgeFailures failures;
  for (size_t i = 0; i < destinations.size(); ++i) {
    const Rank rank = destinations[i].rank;
    if (under_way[i].valid()) {
      results[i] = RemoteOf(rank)->Finish(std::move(under_way[i]), access.deadline);
    }
    failures.Add(rank, results[i]);
  }
  return failures.ToStatus(options_.name);
}

RemoteEnd* Window::RemoteOf(Rank peer) const {
  const auto found = remote_ends_.find(peer);
  return found == remote_ends_.end() ? nullptr : found->second.get();
}

// With the mutex, because without it the value is on its way already.
absl::Status Window::WriteFar(RemoteEnd& end, const EdgeWrite::What& what,
                              const WindowAccess& access) {
  RETURN_IF_ERROR(end.Lock(rank_, access.deadline));
  const absl::Status written = end.Finish(end.StartWrite(what), access.deadline);
  const absl::Status unlocked = end.Unlock();
  return written.ok() ? unlocked : written;
}

absl::Status Window::WriteTo(const Neighbor& destination, const EdgeWrite::What& what,
                             const WindowAccess& access) {
  RETURN_IF_ERROR(processes_->Check(destination.rank));
  if (access.with_mutex) {
    RETURN_IF_ERROR(Lock(destination.rank, /*of_own=*/false, access.deadline));
  }
  EdgeWrite write(edge_to(destination.rank), what);
  absl::StatusOr<bool> is_done = false;
  while (is_done.ok() && !*is_done) is_done = write.Advance();
  if (access.with_mutex) RETURN_IF_ERROR(Unlock(destination.rank, /*of_own=*/false));
  return is_done.status();
}

absl::Status Window::Get(absl::Span<const Neighbor> sources, const WindowAccess& access) {
  RETURN_IF_ERROR(CheckWeights(sources, options_.sources, "sources"));
  EdgeFailures failures;
  for (const Neighbor& source : sources) failures.Add(source.rank, GetFrom(source, access));
  return failures.ToStatus(options_.name);
}

absl::Status Window::GetFrom(const Neighbor& source, const WindowAccess& access) {
  RETURN_IF_ERROR(processes_->Check(source.rank));
  if (access.with_mutex) {
    RETURN_IF_ERROR(Lock(source.rank, /*of_own=*/false, access.deadline));
  }
  EdgeFill::What what;
  what.count = options_.tensor.count;
  what.dtype = options_.tensor.dtype;
  what.weight = source.weight;
  RemoteEnd* const far = RemoteOf(source.rank);
  const EdgeView inlet = memory_.edge(InletOf(source.rank));
  const absl::Status got =
      far != nullptr ? far->Fill(inlet, what, access.deadline) : FillFrom(source.rank, inlet, what);
  if (!access.with_mutex) return got;
  const absl::Status unlocked = Unlock(source.rank, /*of_own=*/false);
  return got.ok() ? unlocked : got;
}

absl::Status Window::FillFrom(Rank source, const EdgeView& inlet, EdgeFill::What what) const {
  const NeighborEnd& end = near_ends_.at(source);
  what.pid = end.pid;
  what.address = end.tensor_address;
  EdgeFill fill(inlet, what);
  absl::StatusOr<bool> is_done = false;
  while (is_done.ok() && !*is_done) is_done = fill.Advance();
  return is_done.status();
}

OwnerUpdate::What Window::PlanOf(const Update& update, bool with_p) const {
  OwnerUpdate::What what;
  what.tensor = static_cast<const std::byte*>(options_.tensor.data);
  what.target =
      update.target != nullptr ? update.target : static_cast<std::byte*>(options_.tensor.data);
  what.count = options_.tensor.count;
  what.dtype = options_.tensor.dtype;
  what.own_weight = update.own_weight;
  what.resets = update.resets;
  what.is_mean = IsMean(update.own_weight, update.sources);
  if (with_p) what.p = p();
  for (const Neighbor& source : update.sources) {
    what.sources.push_back({memory_.edge(InletOf(source.rank)), source.weight});
  }
  return what;
}

absl::Status Window::UpdateFromInlets(const Update& update, const WindowAccess& access) {
  RETURN_IF_ERROR(CheckWeights(update.sources, options_.sources, "sources"));
  RETURN_IF_ERROR(Annotate(CheckWindowWeight(options_.tensor.dtype, update.own_weight),
                           "the window's own weight"));
  if (access.with_mutex) RETURN_IF_ERROR(LockInlets(update.sources, access.deadline));
  const double before = p();
  OwnerUpdate run(PlanOf(update, access.with_p));
  while (!run.Advance()) {
  }
  // A put of the writer's thread may have scaled p meanwhile: what came in is added to that.
  double seen = before;
  while (run.p().has_value() && !p_.compare_exchange_weak(seen, *run.p() + (seen - before))) {
  }
  for (size_t inlet = 0; inlet < options_.sources.size(); ++inlet) {
    const Rank source = options_.sources[inlet];
    const bool is_used =
        std::any_of(update.sources.begin(), update.sources.end(),
                    [source](const Neighbor& neighbor) { return neighbor.rank == source; });
    if (!is_used) memory_.edge(inlet).inlet->ForgetVersion();
  }
  absl::Status unlocked;
  for (const Neighbor& source : update.sources) {
    if (access.with_mutex) unlocked.Update(Unlock(source.rank, /*of_own=*/true));
  }
  return unlocked;
}

// All or none.
absl::Status Window::LockInlets(absl::Span<const Neighbor> sources,
                                const MovingDeadline& deadline) {
  for (size_t i = 0; i < sources.size(); ++i) {
    const absl::Status locked = Lock(sources[i].rank, /*of_own=*/true, deadline);
    if (locked.ok()) continue;
    for (size_t k = 0; k < i; ++k) RETURN_IF_ERROR(Unlock(sources[k].rank, /*of_own=*/true));
    return Annotate(locked, absl::StrCat("window '", options_.name, "': edge with rank ",
                                         sources[i].rank.value()));
  }
  return absl::OkStatus();
}

std::vector<std::pair<Rank, uint32_t>> Window::versions() const {
  std::vector<std::pair<Rank, uint32_t>> versions;
  for (size_t inlet = 0; inlet < options_.sources.size(); ++inlet) {
    versions.emplace_back(options_.sources[inlet], memory_.edge(inlet).inlet->version());
  }
  return versions;
}

bool Window::IsCollected(Rank destination) const {
  return RemoteOf(destination) != nullptr || edge_to(destination).inlet->is_zero();
}

absl::StatusOr<EdgeMutex*> Window::MutexOf(Rank peer, bool of_own) const {
  if (peer.value() < 0 || peer.value() >= processes_->world_size().value()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", peer.value(), " is not in [0, ",
                                                   processes_->world_size().value(), ")"));
  }
  if (of_own) return &memory_.mutex(peer);
  const auto found = near_ends_.find(peer);
  if (found != near_ends_.end()) return &found->second.memory.mutex(rank_);
  return absl::InvalidArgumentError(absl::StrCat("rank ", peer.value(), " is no neighbour of rank ",
                                                 rank_.value(), " in window '", options_.name,
                                                 "'"));
}

absl::Status Window::Lock(Rank peer, bool of_own, const MovingDeadline& deadline) {
  if (RemoteEnd* const far = RemoteOf(peer); far != nullptr && !of_own) {
    return far->Lock(rank_, deadline);
  }
  ASSIGN_OR_RETURN(EdgeMutex* const mutex, MutexOf(peer, of_own));
  return mutex->Lock(rank_, deadline);
}

absl::StatusOr<bool> Window::TryLock(Rank peer, bool of_own) {
  if (RemoteEnd* const far = RemoteOf(peer); far != nullptr && !of_own) return far->TryLock(rank_);
  ASSIGN_OR_RETURN(EdgeMutex* const mutex, MutexOf(peer, of_own));
  return mutex->TryLock(rank_);
}

absl::Status Window::Unlock(Rank peer, bool of_own) {
  RemoteEnd* const far = RemoteOf(peer);
  if (far != nullptr && !of_own) return far->Unlock();
  ASSIGN_OR_RETURN(EdgeMutex* const mutex, MutexOf(peer, of_own));
  RETURN_IF_ERROR(mutex->Unlock());
  if (far != nullptr) far->OnUnlock();
  return absl::OkStatus();
}

}  // namespace pelton
