// What a transport does to all of its communicators at once, while their wires are slow.
#include "comm/transport/network/network_transport.h"

#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "comm/transport/network/worker.h"
#include "comm/transport/shm/test_transports.h"
#include "comm/transport/tcp/tcp_transport.h"
#include "core/base/check.h"
#include "gtest/gtest.h"

namespace pelton::network {
namespace {

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// Decides what Flush of a worker returns: its number, and what it would return. The first worker of
// a transport is the intercom's, the others are those of its communicators as they open.
using OnFlush = std::function<bool(int number, bool is_flushed)>;

// A worker over TCP whose Flush a test answers. Threads: as Worker. Owns: the wrapped one.
class WatchedWorker final : public Worker {
 public:
  WatchedWorker(std::unique_ptr<Worker> wrapped, int number, const OnFlush& on_flush)
      : wrapped_(std::move(wrapped)), number_(number), on_flush_(on_flush) {}

  const std::string& address() const override { return wrapped_->address(); }
  absl::Status AcceptFrom(const std::set<uint32_t>& hosts) override {
    return wrapped_->AcceptFrom(hosts);
  }
  absl::Status StopListening() override { return wrapped_->StopListening(); }
  absl::Status Trouble() const override { return wrapped_->Trouble(); }
  absl::Status Connect(int peer, const std::string& address) override {
    return wrapped_->Connect(peer, address);
  }
  bool IsConnected(int peer) const override { return wrapped_->IsConnected(peer); }
  absl::StatusOr<bool> Send(int peer, const SendRequest& request) override {
    return wrapped_->Send(peer, request);
  }
  absl::StatusOr<bool> Pull(const Payload& payload, void* target, Waiter* waiter) override {
    return wrapped_->Pull(payload, target, waiter);
  }
  void Release(const Payload& payload) override { wrapped_->Release(payload); }
  bool Progress() override { return wrapped_->Progress(); }
  bool Arm() override { return wrapped_->Arm(); }
  int descriptor() const override { return wrapped_->descriptor(); }
  bool Flush() override { return on_flush_(number_, wrapped_->Flush()); }
  bool HasArrived() override { return wrapped_->HasArrived(); }
  bool DeliversWhenClosed() const override { return wrapped_->DeliversWhenClosed(); }
  void Close() override { wrapped_->Close(); }

 private:
  const std::unique_ptr<Worker> wrapped_;
  const int number_;
  const OnFlush& on_flush_;
};

// Loopback. Threads: as Network. Owns: the wrapped one.
class WatchedNetwork final : public Network {
 public:
  WatchedNetwork(std::unique_ptr<Network> wrapped, const OnFlush& on_flush)
      : wrapped_(std::move(wrapped)), on_flush_(on_flush) {}
  const std::string& interface() const override { return wrapped_->interface(); }
  absl::StatusOr<std::unique_ptr<Worker>> MakeWorker(Receiver& receiver,
                                                     const std::vector<Rank>& members) override {
    auto made = wrapped_->MakeWorker(receiver, members);
    if (!made.ok()) return made.status();
    return std::make_unique<WatchedWorker>(*std::move(made), made_count_++, on_flush_);
  }

 private:
  const std::unique_ptr<Network> wrapped_;
  const OnFlush& on_flush_;
  int made_count_ = 0;
};

// Threads: one. Owns: two ranks' transports with communicators 1, 2, ... of both; a test answers
// the Flush of rank 0's workers.
class NetworkTransportTest : public testing::Test {
 protected:
  void Open(uint32_t communicator_count) {
    shm::MeetingPlace place(2);
    RunRanks([&](int rank) {
      shm::TestBootstrap bootstrap(place, rank);
      TransportOptions options;
      options.rank = Rank(rank);
      options.world_size = WorldSize(2);
      options.job_token = "token";
      options.bootstrap = &bootstrap;
      options.deadline = Soon();
      auto network = tcp::MakeTcpNetwork(options);
      PELTON_CHECK(network.ok()) << network.status();
      auto made = MakeNetworkTransport(
          options,
          std::make_unique<WatchedNetwork>(*std::move(network), rank == 0 ? on_flush : as_it_is));
      PELTON_CHECK(made.ok()) << made.status();
      Transport& transport = *(transports[rank] = *std::move(made));
      for (uint32_t id = 1; id <= communicator_count; ++id) {
        auto opened = transport.Open(CommunicatorId(id), Group::World(WorldSize(2)), Soon());
        PELTON_CHECK(opened.ok()) << opened.status();
        communicators[rank].push_back(*std::move(opened));
      }
    });
  }
  ~NetworkTransportTest() override {
    on_flush = as_it_is;
    RunRanks([&](int rank) {
      communicators[rank].clear();
      transports[rank].reset();
    });
  }

  static void RunRanks(const std::function<void(int)>& body) {
    std::thread other(body, 1);
    body(0);
    other.join();
  }

  const OnFlush as_it_is = [](int, bool is_flushed) { return is_flushed; };
  OnFlush on_flush = as_it_is;
  std::unique_ptr<Transport> transports[2];
  std::vector<std::unique_ptr<Communicator>> communicators[2];
};

// One that nobody takes the news of takes a fifth of a second, so that one after the other would
// take eight; meanwhile a backend answers nothing.
TEST_F(NetworkTransportTest, AnAbortOfManyCommunicatorsTakesAsLongAsThatOfOne) {
  std::atomic<bool> is_stuck = false;
  on_flush = [&](int number, bool is_flushed) { return is_flushed && !(is_stuck && number > 0); };
  Open(40);
  is_stuck = true;
  const absl::Time before = absl::Now();
  transports[0]->Abort(absl::DataLossError("the disk is full"));
  EXPECT_LT(absl::Now() - before, absl::Seconds(4));
  HostStream stream;
  Operation operation;
  for (const auto& communicator : communicators[0]) {
    EXPECT_EQ(communicator->Launch(operation, stream).status().code(), absl::StatusCode::kDataLoss);
  }
}

// While the first of two is told of the abort, the second is closed by another thread.
TEST_F(NetworkTransportTest, ACommunicatorMayCloseWhileTheTransportAborts) {
  constexpr int kFirst = 1;
  constexpr int kSecond = 2;
  absl::Notification second_has_said_bye;
  std::atomic<bool> is_closing = false;
  std::atomic<bool> has_said_bye = false;
  std::thread closes;
  on_flush = [&](int number, bool is_flushed) {
    if (number == kSecond && is_closing && !has_said_bye.exchange(true)) {
      second_has_said_bye.Notify();
    }
    if (number == kFirst && !is_closing.exchange(true)) {
      closes = std::thread([&] { communicators[0][1].reset(); });
      // In vain, where it waits for the abort to end before it says anything.
      second_has_said_bye.WaitForNotificationWithTimeout(absl::Milliseconds(500));
    }
    return is_flushed;
  };
  Open(2);
  transports[0]->Abort(absl::DataLossError("the disk is full"));
  closes.join();
  HostStream stream;
  EXPECT_EQ(communicators[0][0]->Launch(Operation(), stream).status().code(),
            absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace pelton::network
