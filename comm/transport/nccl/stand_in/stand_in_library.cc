#include "comm/transport/nccl/stand_in/stand_in_library.h"

#include "core/base/check.h"
#include "core/memory/cuda/shared_library.h"

namespace pelton::stand_in {
namespace {

template <typename Function>
void Bind(const SharedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.Symbol(name));
  PELTON_CHECK(function != nullptr) << name;
}

StandIn Load() {
  const auto library = SharedLibrary::Find({LibraryPath(), {}, ""});
  PELTON_CHECK(library.ok()) << library.status();
  StandIn stand_in;
  Bind(*library, "PeltonStandInFail", stand_in.fail);
  Bind(*library, "PeltonStandInBreak", stand_in.break_all);
  Bind(*library, "PeltonStandInSetVersion", stand_in.set_version);
  Bind(*library, "PeltonStandInSetDeviceCount", stand_in.set_device_count);
  Bind(*library, "PeltonStandInSetBusyPolls", stand_in.set_busy_polls);
  Bind(*library, "PeltonStandInOpenCount", stand_in.open_count);
  Bind(*library, "PeltonStandInReset", stand_in.reset);
  return stand_in;
}

}  // namespace

std::string LibraryPath() { return "comm/transport/nccl/stand_in/libpelton_gpu_stand_in.so"; }

const StandIn& StandIn::Get() {
  static const StandIn* const stand_in = new StandIn(Load());  // never unloaded
  return *stand_in;
}

}  // namespace pelton::stand_in
