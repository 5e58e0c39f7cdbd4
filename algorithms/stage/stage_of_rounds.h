// Stages that run in some rounds and are left out in the others.
#ifndef PELTON_ALGORITHMS_STAGE_STAGE_OF_ROUNDS_H_
#define PELTON_ALGORITHMS_STAGE_STAGE_OF_ROUNDS_H_

#include <cstdint>
#include <memory>

#include "core/pipeline/stage.h"

namespace pelton {

// Rounds count from 1. Whether this one's number is a multiple of `interval`; 0 has none.
bool IsMultiple(const BucketRun& run, uint64_t interval);

enum class WhichRounds : uint8_t { kMultiples, kOthers };

// `stage`, in the rounds that are multiples of `interval` or in the others; its state is kept in
// all of them.
std::unique_ptr<Stage> MakeStageOfRounds(std::unique_ptr<Stage> stage, WhichRounds which,
                                         uint64_t interval);

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_STAGE_OF_ROUNDS_H_
