// Push-sum by windows, with rounds that no other rank takes part in.
#ifndef PELTON_ALGORITHMS_STAGE_PUSH_TO_WINDOWS_H_
#define PELTON_ALGORITHMS_STAGE_PUSH_TO_WINDOWS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/graph/graph_sequence.h"
#include "comm/tiers.h"
#include "core/pipeline/stage.h"
#include "core/plan/plan.h"

namespace pelton {

// A bucket, weights x, becomes by how much x is to change. Of each bucket a rank has the numerator
// s, which begins as x, and the share w, which begins at 1; z = s / w are its weights. In a round
// of its own a rank
//   adds what training has changed since its last round: s += x - z, with z as that round left it;
//   collects what lies in its slots, shares of s and of w: both are added;
//   gives, if w >= kEnoughToGive, 1 / (1 + destinations) of s and of w to each of its destinations
//   in the graph that have collected what it gave them before, and keeps the rest;
//   has z = s / w for its weights.
// The window has w behind the elements of s, so that a rank never sees a share of one without that
// of the other. What is given is taken from the giver, so that the sums of s and of w over all
// ranks and slots stay what they are, up to rounding, in any interleaving (MASS-1). They are kept
// and not the mean of z. Each rank goes through the graphs by the number of rounds in which it has
// had enough to give, so that it uses each of them, however often it has not. Weights of the graphs
// are not looked at.
//
// A rank whose rounds stand still holds up nobody: it takes one share from each rank that has an
// edge to it, and the others go on with the rest. Of a rank on another host it is not known what it
// has collected, so that it takes shares until those that give to it have too little.
//
// A round in RoundMode::kCollecting collects and gives nothing: after it nothing is left between
// ranks. What has changed the weights until the next round is no training then, or not of this sum:
// they may have been loaded. So that round begins with s = w x. Without such a change s and w go on
// as they were.
//
// Works in float64 for float64, else in float32. Blocks: the stage never inside a host; its making
// and Errors: as WindowSource::Make.
absl::StatusOr<std::unique_ptr<Stage>> MakePushToWindowsStage(
    const BucketLayout& layout, const Tiers& tiers, std::unique_ptr<GraphSequence> graphs);

// A rank that gave in each of its rounds while nobody gives to it would halve w again and again,
// and its weights, which move by 1 / w of what training changes in s, would run away. With this
// bound w is at least 1 / 2 of 1 / (1 + destinations). A higher bound would be kinder to the
// weights of a fast rank, but where a rank stands still the others have less than 1 each, of three
// ranks over one_peer_exponential 1 / 2, and have to go on.
inline constexpr double kEnoughToGive = 0.5;

}  // namespace pelton

#endif  // PELTON_ALGORITHMS_STAGE_PUSH_TO_WINDOWS_H_
