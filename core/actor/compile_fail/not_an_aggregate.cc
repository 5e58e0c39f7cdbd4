// expect: a message is an aggregate
#include "core/actor/compile_fail/probe.h"
struct Probe {
#ifdef PELTON_BAD
  explicit Probe(int value) : number(value) {}
#endif
  int number;
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
