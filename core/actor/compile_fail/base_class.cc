// expect: a message has no base class
#include "core/actor/compile_fail/probe.h"
struct Base {
  int number;
};
#ifdef PELTON_BAD
struct Probe : Base {
  int more;
};
#else
struct Probe {
  Base base;
  int more;
};
#endif
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
