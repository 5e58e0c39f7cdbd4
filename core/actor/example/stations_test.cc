#include "core/actor/example/stations.h"

#include "core/actor/executor_fixture.h"
#include "gtest/gtest.h"

namespace pelton::example {
namespace {

// An hour of virtual time in every order that fifty seeds give.
TEST(StationsTest, StationsThatBreakAreRestartedAndTheOfficeKnowsAllOfThem) {
  ForEachSeed(50, [](uint64_t seed) {
    SimExecutor executor(seed);
    const ActorRef<Office> office = OpenOffice(executor, 4);
    EXPECT_EQ(office.Ask(AskMean{}, Soon()).Await(Soon()).status().code(),
              absl::StatusCode::kNotFound);
    executor.RunFor(absl::Hours(1));
    EXPECT_EQ(office.Ask(AskMean{}, Soon()).Await(Soon()).value(), 11.5);
    // Each sensor lasts for ten minutes and a little.
    EXPECT_EQ(office.Ask(AskBroken{}, Soon()).Await(Soon()).value(), 4 * 5);
  });
}

}  // namespace
}  // namespace pelton::example
