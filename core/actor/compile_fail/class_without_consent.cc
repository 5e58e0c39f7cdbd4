// expect: field 0 (counted from 0) of this message is not Sendable
#include "core/actor/compile_fail/probe.h"
class Lease {
 public:
  explicit Lease(int id) : id_(id) {}
  int id() const { return id_; }

 private:
  int id_;
};
#ifndef PELTON_BAD
template <>
inline constexpr bool pelton::kSendableType<Lease> = true;
#endif
struct Probe {
#ifdef PELTON_BAD
  std::unique_ptr<Lease> lease;
#else
  std::unique_ptr<Lease> lease;
#endif
};
template absl::Status pelton::SendTo<Probe>(const pelton::ActorRef<pelton::Understands<Probe>>&,
                                            Probe);
