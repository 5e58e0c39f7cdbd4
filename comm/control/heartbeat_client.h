// A rank's end of its heartbeat stream.
#ifndef PELTON_COMM_CONTROL_HEARTBEAT_CLIENT_H_
#define PELTON_COMM_CONTROL_HEARTBEAT_CLIENT_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/control/control.h"
#include "comm/control/coordinator_messages.h"
#include "core/actor/promise.h"
#include "core/actor/waker.h"
#include "core/base/inbox.h"
#include "core/base/threads.h"
#include "proto/control.grpc.pb.h"

namespace pelton {

// Sends a heartbeat every interval and delivers the orders that come, until it is stopped or the
// connection ends, which is an order of its own.
// Threads: any. Owns: the stream and two threads, because gRPC's reads and writes block; borrows
// stub and inbox.
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

  // Once. Blocks: until the coordinator watches this rank, or `deadline`. Errors: DeadlineExceeded;
  // Unavailable: the connection has ended before.
  absl::Status AwaitOpen(absl::Time deadline);
  void SetRound(Round round) { round_.store(round.value(), std::memory_order_relaxed); }
  // Ends the stream; no order is delivered afterwards. Before a Leave this is a death.
  void Stop();

 private:
  void RunReader();
  void RunBeats();
  void Receive(const proto::Order& message);
  void OnEcho(uint64_t beat_number);
  void End(const grpc::Status& status);
  bool GoesOn() const { return !is_stopping_.load() && is_reading_.load(); }

  const Options options_;
  Inbox<Order>& inbox_;
  std::atomic<uint64_t> round_{0};
  // The last beat that was sent, and how long the last echo took.
  std::atomic<uint64_t> beat_number_{0};
  std::atomic<int64_t> sent_ns_{0};
  std::atomic<int64_t> round_trip_us_{0};
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<proto::HeartbeatRequest, proto::Order>> stream_;
  PromiseAndFuture<void> opening_ = MakePromise<void>();
  std::atomic<bool> is_stopping_{false};
  std::atomic<bool> is_reading_{true};
  Waker between_beats_;  // kicked once they are to end

  // The reader's.
  bool is_open_ = false;
  bool given_up_ = false;  // the coordinator takes this rank for dead

  // Last: their calls use the others.
  CallThread beats_{"pelton-beats"};
  CallThread reader_{"pelton-orders"};
};

}  // namespace pelton

#endif  // PELTON_COMM_CONTROL_HEARTBEAT_CLIENT_H_
