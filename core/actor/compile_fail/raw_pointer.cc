// expect: field 1 (counted from 0) of this message is not Sendable
#include "core/actor/compile_fail/probe.h"

struct Probe {
#ifdef PELTON_BAD
  int number;
  int* pointer;
#else
  int number;
  std::unique_ptr<int> pointer;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
