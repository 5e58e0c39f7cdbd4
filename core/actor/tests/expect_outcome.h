// What tests of a model say of the outcome of its exploration.
#ifndef PELTON_CORE_ACTOR_TESTS_EXPECT_OUTCOME_H_
#define PELTON_CORE_ACTOR_TESTS_EXPECT_OUTCOME_H_

#include <cstdint>
#include <string>

#include "core/actor/tests/interleavings.h"
#include "gtest/gtest.h"

namespace pelton::interleavings {

// No run went wrong. Of several orders, or the program has no choice and the test shows nothing.
inline void ExpectRight(const Outcome& outcome, uint64_t more_runs_than = 3) {
  EXPECT_EQ(outcome.error, "") << "in run " << outcome.runs;
  EXPECT_GT(outcome.runs, more_runs_than);
}
// A planted mistake was found by a run with this error.
inline void ExpectWrong(const Outcome& outcome, const std::string& error) {
  EXPECT_NE(outcome.error.find(error), std::string::npos)
      << '"' << outcome.error << "\" after " << outcome.runs << " runs";
}

}  // namespace pelton::interleavings

#endif  // PELTON_CORE_ACTOR_TESTS_EXPECT_OUTCOME_H_
