#include "comm/hierarchy/wires.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton::hierarchy {
namespace {

// Completions that are remembered before those that are done are looked for among them.
constexpr size_t kMostRemembered = 4 * limits::kMaxOperationsInFlight;

// A ticket's lowest bit says which wire it is of.
constexpr Completion Tag(Completion completion, bool is_inside) {
  return {completion.ticket * 2 + (is_inside ? 1 : 0)};
}
constexpr Completion Untag(Completion completion) { return {completion.ticket / 2}; }
constexpr bool IsInside(Completion completion) { return completion.ticket % 2 == 1; }

// Takes "rank <number> aborted: " off the beginning of `text`, if it is there.
bool ConsumeAborted(absl::string_view* text) {
  absl::string_view rest = *text;
  if (!absl::ConsumePrefix(&rest, "rank ")) return false;
  const size_t digits = rest.find_first_not_of("0123456789");
  if (digits == 0 || digits == absl::string_view::npos) return false;
  rest.remove_prefix(digits);
  if (!absl::ConsumePrefix(&rest, " aborted: ")) return false;
  *text = rest;
  return true;
}

bool SaysWhoAborted(absl::string_view text) { return ConsumeAborted(&text); }

}  // namespace

Wires::Wires(const Layout& layout, std::unique_ptr<Communicator> inside,
             std::unique_ptr<Communicator> between)
    : layout_(layout), inside_(std::move(inside)), between_(std::move(between)) {}

absl::StatusOr<Completion> Wires::Launch(const Operation& operation, Stream& stream) {
  ForgetDone();
  const int32_t self = between_->rank().value();
  const bool is_pair = IsPointToPoint(operation.kind);
  const bool is_inside = !is_pair || layout_.SameHost(operation.peer, self);
  Operation routed = operation;
  if (is_pair && is_inside) routed.peer = layout_.LocalRankOf(operation.peer);
  Communicator& wire = is_inside ? *inside_ : *between_;
  absl::StatusOr<Completion> launched = wire.Launch(routed, stream);
  if (!launched.ok()) return InTermsOfGroup(launched.status(), is_inside);
  in_flight_.push_back(Tag(*launched, is_inside));
  return in_flight_.back();
}

// None, too, where all ranks of this host have left: those of other hosts may send.
absl::StatusOr<std::optional<Rank>> Wires::FindSenderInside(int32_t tag) {
  if (inside_ == nullptr) return std::nullopt;
  const absl::StatusOr<std::optional<Rank>> found = inside_->FindSender(tag);
  if (absl::IsNotFound(found.status())) return std::nullopt;
  if (!found.ok()) return InTermsOfGroup(found.status(), /*is_inside=*/true);
  if (!found->has_value()) return std::nullopt;
  const std::vector<int32_t>& host = layout_.RanksOn(layout_.HostOf(between_->rank().value()));
  return Rank(host[(*found)->value()]);
}

absl::StatusOr<std::optional<Rank>> Wires::FindSender(int32_t tag) {
  ASSIGN_OR_RETURN(const std::optional<Rank> near, FindSenderInside(tag));
  if (near.has_value()) return near;
  absl::StatusOr<std::optional<Rank>> far = between_->FindSender(tag);
  if (!absl::IsNotFound(far.status())) return far;
  // A neighbour may have sent, and left, in between.
  ASSIGN_OR_RETURN(const std::optional<Rank> last, FindSenderInside(tag));
  if (last.has_value()) return last;
  return far;
}

bool Wires::Progress() {
  const bool moved = between_->Progress();
  return (inside_ != nullptr && inside_->Progress()) || moved;
}

OperationRunner::State Wires::Query(Completion completion) {
  const bool is_inside = IsInside(completion);
  State state = (is_inside ? *inside_ : *between_).Query(Untag(completion));
  state.status = InTermsOfGroup(state.status, is_inside);
  return state;
}

// An abort travels on both wires and each rank passes it on, so a status may have several "rank N
// aborted: " before it. The last one is whose abort it was.
absl::Status Wires::InTermsOfGroup(const absl::Status& status, bool is_inside) const {
  if (status.ok()) return status;
  absl::string_view text = status.message();
  for (absl::string_view rest = text; ConsumeAborted(&rest) && SaysWhoAborted(rest);) text = rest;
  if (text != status.message()) return absl::Status(status.code(), text);
  // Whom it lost, or who aborted, a host's transport tells in the job's numbers, as a wire between
  // hosts does.
  if (!is_inside || !absl::IsInvalidArgument(status)) return status;
  const int32_t host = layout_.HostOf(between_->rank().value());
  return Annotate(status, absl::StrCat("among rank(s) ", absl::StrJoin(layout_.RanksOn(host), ", "),
                                       " of one host, numbered from 0"));
}

void Wires::ForgetDone() {
  while (!in_flight_.empty() && Query(in_flight_.front()).done) in_flight_.pop_front();
  // Behind one that takes long.
  if (in_flight_.size() > kMostRemembered) IsIdle();
}

bool Wires::IsIdle() {
  std::erase_if(in_flight_, [this](Completion completion) { return Query(completion).done; });
  return in_flight_.empty();
}

void Wires::Close() {
  inside_.reset();
  between_.reset();
}

void Wires::Park(absl::Time until) {
  parks_inside_ = !parks_inside_ && inside_ != nullptr;
  (parks_inside_ ? *inside_ : *between_).Park(until);
}

void Wires::Wake() {
  between_->Wake();
  if (inside_ != nullptr) inside_->Wake();
}

void Wires::Abort(const absl::Status& reason) {
  between_->Abort(reason);
  if (inside_ == nullptr) return;
  if (SaysWhoAborted(reason.message())) return inside_->Abort(reason);
  const Rank self = layout_.WorldRankOf(between_->rank().value());
  inside_->Abort(Annotate(reason, absl::StrCat("rank ", self.value(), " aborted")));
}

std::vector<Rank> Wires::Missing() const {
  const std::vector<Rank> far = between_->Missing();
  if (!far.empty() || inside_ == nullptr) return far;
  std::vector<Rank> near;
  const std::vector<int32_t>& host = layout_.RanksOn(layout_.HostOf(between_->rank().value()));
  for (const Rank rank : inside_->Missing()) near.emplace_back(host[rank.value()]);
  return near;
}

int Wires::spins() const {
  return inside_ == nullptr ? between_->spins() : std::min(inside_->spins(), between_->spins());
}

absl::Status Wires::Register(const Region& region) {
  RETURN_IF_ERROR(between_->Register(region));
  return inside_ == nullptr ? absl::OkStatus() : inside_->Register(region);
}

void Wires::Deregister(RegionId region) {
  if (between_ == nullptr) return;  // its end was that of all registrations
  between_->Deregister(region);
  if (inside_ != nullptr) inside_->Deregister(region);
}

}  // namespace pelton::hierarchy
