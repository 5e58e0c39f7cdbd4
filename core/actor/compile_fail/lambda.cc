// expect: a message is an aggregate
#include "core/actor/compile_fail/probe.h"
struct Known {
  int number;
};
absl::Status Send(const pelton::ActorRef<pelton::Understands<Known>>& ref) {
#ifdef PELTON_BAD
  return ref.Send([] {});
#else
  return ref.Send(Known{1});
#endif
}
