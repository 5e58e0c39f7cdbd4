// expect: field 1 (counted from 0) of this message is a C array: use std::array
#include "core/actor/compile_fail/probe.h"

struct Probe {
#ifdef PELTON_BAD
  int number;
  char text[16];
#else
  int number;
  std::array<char, 16> text;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
