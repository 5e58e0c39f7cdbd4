#include "comm/collectives/fold.h"

namespace pelton {

Fold::Fold(const ProgramShape& shape) : rank_(shape.rank) {
  while (2 * places_ <= shape.world_size) {
    places_ *= 2;
    ++steps_;
  }
  excess_ = shape.world_size - places_;
}

}  // namespace pelton
