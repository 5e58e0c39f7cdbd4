#include "comm/transport/nccl/stand_in/controls.h"

#include <cstdlib>

#include "comm/transport/nccl/stand_in/stand_in.h"

namespace pelton::stand_in {

Controls& Controls::Get() {
  static Controls* const controls = new Controls;  // outlives every communicator
  return *controls;
}

int Controls::DeviceCountAtStart() {
  const char* text = std::getenv("PELTON_STAND_IN_DEVICES");
  return text == nullptr ? kDefaultDeviceCount : std::atoi(text);
}

std::map<std::string, Controls::Fault> Controls::FaultsAtStart() {
  const char* call = std::getenv("PELTON_STAND_IN_FAIL");
  if (call == nullptr) return {};
  return {{call, {0, kDefaultFault}}};
}

void Controls::Fail(const std::string& call, int skip, int result) {
  MutexLock lock(&mutex_);
  faults_[call] = {skip, result};
}

int Controls::FaultOf(const char* call) {
  MutexLock lock(&mutex_);
  const auto found = faults_.find(call);
  if (found == faults_.end() || found->second.skip-- > 0) return 0;
  const int result = found->second.result;
  faults_.erase(found);
  return result;
}

void Controls::Reset() {
  MutexLock lock(&mutex_);
  faults_.clear();
  broken_ = 0;
  version_ = kDefaultVersion;
  device_count_ = DeviceCountAtStart();
  busy_polls_ = kDefaultBusyPolls;
}

}  // namespace pelton::stand_in

using pelton::stand_in::Controls;

void PeltonStandInFail(const char* call, int skip, int result) {
  Controls::Get().Fail(call, skip, result);
}
void PeltonStandInBreak(int result) { Controls::Get().set_broken(result); }
void PeltonStandInSetVersion(int version) { Controls::Get().set_version(version); }
void PeltonStandInSetDeviceCount(int count) { Controls::Get().set_device_count(count); }
void PeltonStandInSetBusyPolls(int polls) { Controls::Get().set_busy_polls(polls); }
int PeltonStandInOpenCount() { return Controls::Get().open_count(); }
void PeltonStandInReset() { Controls::Get().Reset(); }
