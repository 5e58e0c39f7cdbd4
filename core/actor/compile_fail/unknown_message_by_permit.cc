// expect: this actor has no public Handle() for this message
#include "core/actor/compile_fail/probe.h"
struct Known {
  int number;
};
struct Unknown {
  int number;
};
absl::Status Send(pelton::Permits<pelton::Understands<Known>> permits) {
#ifdef PELTON_BAD
  return permits.Send(Unknown{1});
#else
  return permits.Send(Known{1});
#endif
}
