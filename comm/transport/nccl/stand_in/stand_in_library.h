// The stand-in as tests and gpu_check load it: by path.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STAND_IN_LIBRARY_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STAND_IN_LIBRARY_H_

#include <string>

#include "comm/transport/nccl/stand_in/stand_in.h"

namespace pelton::stand_in {

// Where a test finds it: among its runfiles, for it names it in its `data`.
std::string LibraryPath();

// The functions of stand_in.h, in the loaded library. Threads: any. Owns: nothing.
struct StandIn {
  // Loads it. Ends the process if it is not there.
  static const StandIn& Get();

  decltype(&PeltonStandInFail) fail;
  decltype(&PeltonStandInBreak) break_all;
  decltype(&PeltonStandInSetVersion) set_version;
  decltype(&PeltonStandInSetDeviceCount) set_device_count;
  decltype(&PeltonStandInSetBusyPolls) set_busy_polls;
  decltype(&PeltonStandInOpenCount) open_count;
  decltype(&PeltonStandInReset) reset;
};

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STAND_IN_LIBRARY_H_
