// expect: field 0 (counted from 0) of this message is not Sendable
#include "core/actor/compile_fail/probe.h"
struct Inner {
  int number;
#ifdef PELTON_BAD
  const char* text;
#else
  std::string text;
#endif
};
struct Probe {
#ifdef PELTON_BAD
  std::vector<std::optional<Inner>> inner;
#else
  std::vector<std::optional<Inner>> inner;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
