// expect: field 2 (counted from 0) of this message is not Sendable
#include "core/actor/compile_fail/probe.h"

struct Probe {
#ifdef PELTON_BAD
  int a;
  int b;
  const int& reference;
#else
  int a;
  int b;
  int value;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
