// What tests have told the stand-in.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_CONTROLS_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_CONTROLS_H_

#include <map>
#include <string>

#include "core/base/sync.h"

namespace pelton::stand_in {

inline constexpr int kDefaultVersion = 22809;
// Unless PELTON_STAND_IN_DEVICES says otherwise, for programs that no test can steer.
inline constexpr int kDefaultDeviceCount = 64;
inline constexpr int kDefaultBusyPolls = 2;
// What the call that PELTON_STAND_IN_FAIL names returns the first time, for the same programs.
inline constexpr int kDefaultFault = 999;

// Threads: any. Owns: its orders.
class Controls {
 public:
  static Controls& Get();

  void Fail(const std::string& call, int skip, int result);
  // What `call` is to return instead of doing its work; 0 for nothing.
  int FaultOf(const char* call);

  void set_broken(int result) { Set(broken_, result); }
  int broken() { return Read(broken_); }
  void set_version(int version) { Set(version_, version); }
  int version() { return Read(version_); }
  void set_device_count(int count) { Set(device_count_, count); }
  int device_count() { return Read(device_count_); }
  void set_busy_polls(int polls) { Set(busy_polls_, polls); }
  int busy_polls() { return Read(busy_polls_); }
  void Count(int change) {
    MutexLock lock(&mutex_);
    open_count_ += change;
  }
  int open_count() { return Read(open_count_); }
  void Reset();

 private:
  struct Fault {
    int skip;
    int result;
  };
  static int DeviceCountAtStart();
  static std::map<std::string, Fault> FaultsAtStart();
  void Set(int& field, int value) {
    MutexLock lock(&mutex_);
    field = value;
  }
  int Read(const int& field) {
    MutexLock lock(&mutex_);
    return field;
  }

  // All fields are guarded by it; Set and Read take them by reference, which the compiler's check
  // of annotations does not follow.
  Mutex mutex_;
  std::map<std::string, Fault> faults_ = FaultsAtStart();
  int broken_ = 0;
  int version_ = kDefaultVersion;
  int device_count_ = DeviceCountAtStart();
  int busy_polls_ = kDefaultBusyPolls;
  int open_count_ = 0;
};

}  // namespace pelton::stand_in

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_CONTROLS_H_
