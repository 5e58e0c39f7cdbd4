// expect: this actor has no public Handle() for this message
#include "core/actor/compile_fail/probe.h"
struct Known {
  int number;
};
struct Unknown {
  int number;
};
absl::Status Send(const pelton::ActorRef<pelton::Understands<Known>>& ref) {
#ifdef PELTON_BAD
  return ref.Send(Unknown{1});
#else
  return ref.Send(Known{1});
#endif
}
