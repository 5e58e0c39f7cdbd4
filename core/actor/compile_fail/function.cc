// expect: field 0 (counted from 0) of this message is not Sendable
#include <functional>

#include "core/actor/compile_fail/probe.h"
struct Probe {
#ifdef PELTON_BAD
  std::function<void()> call;
#else
  int what_to_call;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
