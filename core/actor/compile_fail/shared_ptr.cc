// expect: field 0 (counted from 0) of this message is not Sendable
#include <memory>

#include "core/actor/compile_fail/probe.h"
struct Probe {
#ifdef PELTON_BAD
  std::shared_ptr<int> shared;
#else
  std::unique_ptr<int> owned;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
