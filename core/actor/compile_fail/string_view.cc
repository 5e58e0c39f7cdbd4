// expect: field 0 (counted from 0) of this message is not Sendable
#include <string_view>

#include "core/actor/compile_fail/probe.h"
struct Probe {
#ifdef PELTON_BAD
  std::string_view text;
#else
  std::string text;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
