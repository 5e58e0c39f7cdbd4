// Running a test over many seeds of the deterministic executor.
#ifndef PELTON_CORE_ACTOR_SIM_TEST_H_
#define PELTON_CORE_ACTOR_SIM_TEST_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace pelton {

// Calls `test(seed)` for `count` seeds, stops at the first that fails and names it. With
// PELTON_SEED in the environment, for that one only; PELTON_SEEDS overrides `count`, and
// PELTON_MOST_SEEDS, which sanitizers have, lowers it where it is larger. Returns how many seeds
// that makes, by which a test divides what it has counted over all of them.
inline uint64_t ForEachSeed(uint64_t count, absl::FunctionRef<void(uint64_t seed)> test) {
  uint64_t first = 1;
  uint64_t value = 0;
  if (const char* seed = std::getenv("PELTON_SEED"); absl::SimpleAtoi(seed ? seed : "", &value)) {
    first = value;
    count = 1;
  } else if (const char* seeds = std::getenv("PELTON_SEEDS");
             absl::SimpleAtoi(seeds ? seeds : "", &value)) {
    count = value;
  } else if (const char* most = std::getenv("PELTON_MOST_SEEDS");
             absl::SimpleAtoi(most ? most : "", &value)) {
    count = std::min(count, value);
  }
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(absl::StrCat("to repeat: PELTON_SEED=", seed));
    test(seed);
    if (::testing::Test::HasFailure()) break;
  }
  return count;
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SIM_TEST_H_
