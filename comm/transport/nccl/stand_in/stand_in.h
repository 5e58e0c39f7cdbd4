// How a test steers the stand-in for NCCL and CUDA: these functions are found in the library by
// name, like those that it stands in for. State is the process's, not a communicator's.
#ifndef PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STAND_IN_H_
#define PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STAND_IN_H_

extern "C" {

// The call of this name ("ncclAllReduce") returns `result` once, after `skip` calls that go well.
void PeltonStandInFail(const char* call, int skip, int result);
// Every communicator reports `result` from ncclCommGetAsyncError; 0 for none.
void PeltonStandInBreak(int result);
// ncclGetVersion's answer from now on, for instance 21403.
void PeltonStandInSetVersion(int version);
void PeltonStandInSetDeviceCount(int count);
// How often a communicator says that it is in progress at its first operation and at its end.
void PeltonStandInSetBusyPolls(int polls);
// Communicators, streams and events that are open, registrations and allocations that are held.
int PeltonStandInOpenCount();
// As at the start, but for what is open.
void PeltonStandInReset();
}

#endif  // PELTON_COMM_TRANSPORT_NCCL_STAND_IN_STAND_IN_H_
