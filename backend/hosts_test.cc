#include "backend/hosts.h"

#include <functional>
#include <thread>

#include "comm/control/in_process_control.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ranks 0, 1 on one host, 2, 3, 4 on another.
const HostMap& TwoHosts() {
  static const HostMap map{{0, 0, 2, 2, 2}};
  return map;
}

TEST(HostMapTest, KnowsWhoIsWithWhom) {
  EXPECT_FALSE(TwoHosts().is_one_host());
  EXPECT_TRUE((HostMap{{0, 0, 0}}).is_one_host());
  EXPECT_THAT(TwoHosts().RanksWith(Rank(3)), ElementsAre(Rank(2), Rank(3), Rank(4)));
  EXPECT_TRUE(TwoHosts().AreWith(Rank(3), {Rank(2), Rank(4)}));
  EXPECT_FALSE(TwoHosts().AreWith(Rank(3), {Rank(2), Rank(1)}));
}

TEST(HostMapTest, IntraRanksAreTheMembersOfAHostInTheGroupsOrder) {
  const Group group{{Rank(1), Rank(0), Rank(2), Rank(3)}, Generation(1)};
  EXPECT_THAT(TwoHosts().IntraRanks(group, Rank(2)), ElementsAre(Rank(2), Rank(3)));
  EXPECT_THAT(TwoHosts().IntraRanks(group, Rank(0)), ElementsAre(Rank(1), Rank(0)));
}

// What each of `boot_ids`'s ranks finds; a rank gives `tokens` of its own if there are any.
std::vector<absl::StatusOr<FoundHosts>> Find(const std::vector<std::string>& boot_ids,
                                             const std::vector<std::string>& tokens = {}) {
  const auto size = static_cast<int32_t>(boot_ids.size());
  const auto coordinator = InProcessCoordinator::Make(Clock::Real());
  std::vector<absl::StatusOr<FoundHosts>> found(size);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto control = coordinator->MakeControl();
      const absl::Time deadline = Clock::Real().Now() + absl::Seconds(30);
      JoinRequest request;
      request.job = "job";
      request.rank = Rank(rank);
      request.world_size = WorldSize(size);
      request.host = HostIdentity::OfThisProcess();
      request.host.boot_id = boot_ids[rank];
      const auto membership = control->Join(request, deadline);
      ASSERT_TRUE(membership.ok()) << membership.status();
      const std::string token = tokens.empty() ? "token" : tokens[rank];
      // A proof that fails is waited for in full by who was to get it.
      const absl::Time search_deadline =
          tokens.empty() ? deadline : Clock::Real().Now() + absl::Seconds(3);
      found[rank] = FindHosts({control.get(), &*membership, Rank(rank), token, search_deadline});
      (void)Barrier(*control, "end", deadline);
      (void)control->Leave(deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(FindHostsTest, RanksThatSayTheSameAndProveItAreOnOneHost) {
  const auto found = Find({"a", "b", "a", "b", "b"});
  for (const auto& hosts : found) {
    ASSERT_TRUE(hosts.ok()) << hosts.status();
    EXPECT_THAT(hosts->map.host_of, ElementsAre(0, 1, 0, 1, 1));
    EXPECT_EQ(hosts->warning, "");
    EXPECT_NE(hosts->inside, nullptr);
  }
}

TEST(FindHostsTest, RanksThatCannotProveItAreHostsOfTheirOwnAndSayWhy) {
  const auto found = Find({"a", "a", "b"}, {"one token", "another token", "one token"});
  for (const auto& hosts : found) {
    ASSERT_TRUE(hosts.ok()) << hosts.status();
    EXPECT_THAT(hosts->map.host_of, ElementsAre(0, 1, 2));
    EXPECT_NE(hosts->inside, nullptr);
  }
  EXPECT_THAT(found[0]->warning, HasSubstr("rank(s) 0, 1 seem to be on one host"));
  EXPECT_EQ(found[0]->warning, found[1]->warning);
  EXPECT_EQ(found[2]->warning, "");
}

}  // namespace
}  // namespace pelton
