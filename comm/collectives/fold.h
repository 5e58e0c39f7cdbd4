// Recipes for powers of two, with the ranks that are too many folded into their neighbours.
#ifndef PELTON_COMM_COLLECTIVES_FOLD_H_
#define PELTON_COMM_COLLECTIVES_FOLD_H_

#include <cstddef>
#include <cstdint>

#include "comm/collectives/recipe.h"

namespace pelton {

// n ranks as p = 2^steps places, p the largest power of two that is not above n. Of the first
// 2 (n - p) ranks each odd one hands its part to the even one before it at the beginning and gets
// its result from there at the end. Places are in the ranks' order.
// Threads: a value. Owns: nothing.
class Fold {
 public:
  explicit Fold(const ProgramShape& shape);

  int32_t places() const { return places_; }
  size_t steps() const { return steps_; }
  bool folds() const { return excess_ > 0; }
  // Waves before the first step: one where anything is folded.
  size_t first_wave() const { return folds() ? 1 : 0; }

  // Whether this rank is folded into `partner()`, or has `partner()` folded into it, or neither.
  bool is_guest() const { return is_folded(rank_) && rank_ % 2 == 1; }
  bool is_host() const { return is_folded(rank_) && rank_ % 2 == 0; }
  int32_t partner() const { return is_guest() ? rank_ - 1 : rank_ + 1; }

  // This rank's place, unless it is a guest.
  int32_t place() const { return is_folded(rank_) ? rank_ / 2 : rank_ - excess_; }
  // The rank at a place; its guest, if it has one, is the next one. FirstRankOf(places()) is n.
  int32_t FirstRankOf(int32_t place) const { return place < excess_ ? 2 * place : place + excess_; }

 private:
  bool is_folded(int32_t rank) const { return rank < 2 * excess_; }

  int32_t rank_;
  int32_t places_ = 1;
  size_t steps_ = 0;
  int32_t excess_;
};

}  // namespace pelton

#endif  // PELTON_COMM_COLLECTIVES_FOLD_H_
