// expect: field 1 (counted from 0) of this message is not Sendable
#include <span>

#include "core/actor/compile_fail/probe.h"
struct Probe {
#ifdef PELTON_BAD
  int number;
  std::span<const float> values;
#else
  int number;
  std::vector<float> values;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
