// As which ranks of the job texts speak of the ranks of one of its hosts.
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/communicator.h"
#include "comm/transport/shm/test_transports.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The host of ranks 4 and 5 alone.
std::vector<std::unique_ptr<Transport>> SecondHost() {
  return MakeTestTransports(WorldSize(2), kKindsWithTasks, {Rank(4), Rank(5)});
}

std::string TextOfBarrier(Communicator& communicator) {
  const absl::StatusOr<Completion> barrier = Barrier(communicator);
  if (!barrier.ok()) return std::string(barrier.status().message());
  const absl::Time deadline = Clock::Real().Now() + absl::Seconds(20);
  return std::string(Await(communicator, *barrier, deadline).message());
}

TEST(NamesTest, WhoAbortsIsNamed) {
  const auto transports = SecondHost();
  const auto ends = OpenWorld(transports, CommunicatorId(1));
  ends[1]->Abort(absl::InternalError("the disk is full"));
  EXPECT_EQ(TextOfBarrier(*ends[0]), "rank 5 aborted: the disk is full");
  EXPECT_EQ(TextOfBarrier(*ends[1]), "the disk is full");
}

TEST(NamesTest, WhoLeavesIsNamed) {
  auto transports = SecondHost();
  auto ends = OpenWorld(transports, CommunicatorId(1));
  ends[1].reset();
  transports[1].reset();
  EXPECT_THAT(TextOfBarrier(*ends[0]), AllOf(HasSubstr("rank 5 (pid "), HasSubstr("has left")));
}

TEST(NamesTest, WhoDoesNotOpenIsNamed) {
  const auto transports = SecondHost();
  const Group both = Group::World(WorldSize(2));
  for (const int rank : {0, 1}) {
    const CommunicatorId id(static_cast<uint32_t>(7 + rank));
    const absl::Status alone =
        transports[static_cast<size_t>(rank)]->Open(id, both, Clock::Real().Now()).status();
    const std::string self = rank == 0 ? "rank 4" : "rank 5";
    const std::string other = rank == 0 ? "rank(s) 5 have" : "rank 4 has";
    EXPECT_THAT(std::string(alone.message()),
                AllOf(HasSubstr(self + ": opening"), HasSubstr(other + " not opened it")));
  }
}

// Also a late one, which finds the words of all that have come.
TEST(NamesTest, WhoHasGivenUpOpeningIsNamed) {
  const auto transports = SecondHost();
  const Group both = Group::World(WorldSize(2));
  EXPECT_FALSE(transports[0]->Open(CommunicatorId(7), both, Clock::Real().Now()).ok());
  const absl::Time began = Clock::Real().Now();
  const absl::Status late =
      transports[1]->Open(CommunicatorId(7), both, began + absl::Seconds(60)).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr("rank 4 has given up opening it: "));
  EXPECT_LT(Clock::Real().Now() - began, absl::Seconds(20));
}

// Also while the group's first rank has not come: it alone would hand out the control block.
TEST(NamesTest, WhoHasGivenUpOpeningIsNamedToThoseThatWaitForTheFirst) {
  const auto transports = MakeTestTransports(WorldSize(3));
  const Group all = Group::World(WorldSize(3));
  EXPECT_FALSE(transports[1]->Open(CommunicatorId(7), all, Clock::Real().Now()).ok());
  const absl::Time began = Clock::Real().Now();
  const absl::Status other =
      transports[2]->Open(CommunicatorId(7), all, began + absl::Seconds(60)).status();
  EXPECT_THAT(std::string(other.message()), HasSubstr("rank 1 has given up opening it: "));
  EXPECT_LT(Clock::Real().Now() - began, absl::Seconds(20));
}

}  // namespace
}  // namespace pelton::shm
