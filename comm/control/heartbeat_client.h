// A rank's end of its heartbeat stream.
#ifndef PELTON_COMM_CONTROL_HEARTBEAT_CLIENT_H_
#define PELTON_COMM_CONTROL_HEARTBEAT_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_messages.h"
#include "core/base/inbox.h"
#include "core/base/sync.h"
#include "proto/control.grpc.pb.h"

namespace pelton {

// Sends a heartbeat every interval and delivers the orders that come, until it is stopped or the
// connection ends, which is an order of its own.
// Threads: any. Owns: the stream and two threads; borrows stub and inbox.
class HeartbeatClient {
 public:
  struct Options {
    Caller self;
    std::string address;  // the coordinator's, for messages
    std::string token;
    absl::Duration interval;
  };

  HeartbeatClient(proto::Coordinator::Stub* stub, Inbox<Order>* inbox, Options options);
  ~HeartbeatClient() { Stop(); }

  // Returns once the coordinator watches this rank. Errors: DeadlineExceeded, Unavailable.
  absl::Status AwaitOpen(absl::Time deadline);
  void SetRound(Round round) { round_.store(round.value(), std::memory_order_relaxed); }
  // Ends the stream; no order is delivered afterwards. Before a Leave this is a death.
  void Stop();

 private:
  enum class State { kOpening, kOpen, kEnded };

  void RunReader();
  void RunBeats();
  void Receive(const proto::Order& message);
  void OnEcho(uint64_t beat_number);
  void End(const grpc::Status& status);

  const Options options_;
  Inbox<Order>& inbox_;
  std::atomic<uint64_t> round_{0};
  // The last beat that was sent, and how long the last echo took.
  std::atomic<uint64_t> beat_number_{0};
  std::atomic<int64_t> sent_ns_{0};
  std::atomic<int64_t> round_trip_us_{0};
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::HeartbeatRequest, proto::Order>> stream_;
  bool given_up_ = false;  // the reader's: the coordinator takes this rank for dead

  Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kOpening;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  absl::Status loss_ ABSL_GUARDED_BY(mutex_);

  std::thread beats_;
  std::thread reader_;
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_HEARTBEAT_CLIENT_H_
