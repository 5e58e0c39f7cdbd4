#include "backend/hosts.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "comm/control/host_identity.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// How long a proof may take: a rank that cannot give it must not use up the time for joining.
constexpr absl::Duration kProofTimeout = absl::Seconds(30);

std::string Listed(const std::vector<Rank>& ranks) {
  return absl::StrJoin(ranks, ", ",
                       [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); });
}

std::vector<Rank> Claimed(const HostSearch& search) {
  const std::vector<Member>& members = search.membership->members;
  const HostIdentity& self = members[search.rank.value()].host;
  std::vector<Rank> ranks;
  for (const Member& member : members) {
    if (member.host.SameHost(self)) ranks.push_back(member.rank);
  }
  return ranks;
}

absl::StatusOr<std::unique_ptr<Transport>> Connect(const HostSearch& search,
                                                   const std::vector<Rank>& ranks,
                                                   absl::Time deadline) {
  ASSIGN_OR_RETURN(const TransportRegistry::Entry entry, TransportRegistry::Get().Find("shm"));
  GroupBootstrap bootstrap(*search.control, ranks);
  TransportOptions options;
  const auto place = std::find(ranks.begin(), ranks.end(), search.rank) - ranks.begin();
  options.rank = Rank(static_cast<int32_t>(place));
  options.world_size = WorldSize(static_cast<int32_t>(ranks.size()));
  options.job_token = search.job_token;
  options.bootstrap = &bootstrap;
  options.deadline = deadline;
  options.names = ranks;
  return entry.factory(options);
}

}  // namespace

bool HostMap::is_one_host() const {
  return std::all_of(host_of.begin(), host_of.end(),
                     [this](int32_t host) { return host == host_of[0]; });
}

bool HostMap::AreWith(Rank rank, absl::Span<const Rank> ranks) const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](Rank other) { return host_of[other.value()] == host_of[rank.value()]; });
}

std::vector<Rank> HostMap::RanksWith(Rank rank) const {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < host_of.size(); ++i) {
    if (host_of[i] == host_of[rank.value()]) ranks.emplace_back(static_cast<int32_t>(i));
  }
  return ranks;
}

std::vector<Rank> HostMap::IntraRanks(const Group& group, Rank rank) const {
  std::vector<Rank> ranks;
  for (const Rank member : group.members) {
    if (host_of[member.value()] == host_of[rank.value()]) ranks.push_back(member);
  }
  return ranks;
}

absl::StatusOr<FoundHosts> FindHosts(const HostSearch& search) {
  const std::vector<Rank> claimed = Claimed(search);
  FoundHosts found;
  const absl::Time now = Clock::Real().Now();
  // What fails must leave time to say so.
  const absl::Time proof_deadline = now + std::min(kProofTimeout, (search.deadline - now) / 2);
  absl::StatusOr<std::unique_ptr<Transport>> proved = Connect(search, claimed, proof_deadline);
  std::string reason;
  if (!proved.ok())
    reason = absl::StrCat("rank ", search.rank.value(), ": ", proved.status().message());
  ASSIGN_OR_RETURN(
      const std::vector<std::string> reasons,
      search.control->AllGatherAmong({"hosts/proof", reason, claimed}, search.deadline));
  const auto first = std::find_if(reasons.begin(), reasons.end(),
                                  [](const std::string& text) { return !text.empty(); });
  Rank lowest = claimed[0];
  if (first != reasons.end()) {
    found.warning = absl::StrCat("rank(s) ", Listed(claimed),
                                 " seem to be on one host but cannot share memory, so each counts "
                                 "as a host of its own: ",
                                 *first);
    lowest = search.rank;
    proved = Connect(search, {search.rank}, search.deadline);
    RETURN_IF_ERROR(proved.status());
  }
  found.inside = *std::move(proved);
  ASSIGN_OR_RETURN(
      const std::vector<std::string> hosts,
      search.control->AllGather("hosts", absl::StrCat(lowest.value()), search.deadline));
  for (const std::string& text : hosts) {
    if (!absl::SimpleAtoi(text, &found.map.host_of.emplace_back())) {
      return absl::InternalError(absl::StrCat("hosts: '", text, "' is no rank"));
    }
  }
  return found;
}

}  // namespace pelton
