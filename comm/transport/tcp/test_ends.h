// Workers of two ranks in one thread, for tests.
#ifndef PELTON_COMM_TRANSPORT_TCP_TEST_ENDS_H_
#define PELTON_COMM_TRANSPORT_TCP_TEST_ENDS_H_

#include <arpa/inet.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/group.h"
#include "comm/transport/network/wire.h"
#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/tcp_worker.h"
#include "comm/transport/tcp/trunk.h"
#include "gtest/gtest.h"

namespace pelton::tcp {

inline const in_addr_t kHost = htonl(INADDR_LOOPBACK);
inline constexpr char kToken[] = "a job's token";

// A header as its receiver takes it: a worker looks at nothing but the source.
inline network::Header From(int source, uint64_t ticket = 0) {
  network::Header header;
  header.source = static_cast<uint32_t>(source);
  header.ticket = ticket;
  return header;
}

// Keeps what comes in. Threads: one. Owns: copies of it.
class Recorder final : public network::Receiver {
 public:
  bool Receive(const network::Header& header, const network::Payload& payload) override {
    if (payload.is_rendezvous) {
      offers.push_back(payload);
      return keeps;
    }
    tickets.push_back(header.ticket);
    texts.emplace_back(static_cast<const char*>(payload.data), payload.size_bytes);
    return false;
  }
  void Lose(int peer, const absl::Status& why) override {
    lost.push_back(peer);
    loss = why;
  }
  void Rouse() override { ++rouses; }

  bool keeps = true;
  std::vector<uint64_t> tickets;
  std::vector<std::string> texts;
  std::vector<network::Payload> offers;
  std::vector<int> lost;
  absl::Status loss;
  int rouses = 0;
};

// Threads: one. Owns: what it was told.
class Flag final : public network::Waiter {
 public:
  void OnDone(const absl::Status& status) override {
    ++calls;
    last = status;
  }
  int calls = 0;
  absl::Status last;
};

inline std::string Bytes(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof frame);
}
inline std::string Bytes(const network::Header& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

inline network::Members MembersOf(int rank, int world_size, const std::string& token) {
  return network::Members(token, kGreetings, Group::World(WorldSize(world_size)), Rank(rank));
}

inline std::vector<Rank> World(int size) { return Group::World(WorldSize(size)).members; }

// What `from` says first on a connection to `to`.
inline std::string Greeting(int from, int to, int world_size, const std::string& token = kToken) {
  Frame frame;
  frame.type = FrameType::kGreeting;
  const network::Members members = MembersOf(from, world_size, token);
  return Bytes(frame) + Bytes(members.MakeHeader(network::MessageType::kHello, to));
}

// Port of the first worker at a trunk.
inline constexpr uint32_t kFirst = 1;

inline Frame FrameOf(FrameType type, uint64_t size_bytes = 0, uint64_t id = 0) {
  Frame frame;
  frame.type = type;
  frame.port = kFirst;
  frame.size_bytes = size_bytes;
  frame.id = id;
  return frame;
}

// Threads: one. Owns: a pair of connected workers; `ends[i]` is peer i, and end 1 has listened.
class TwoEnds : public testing::Test {
 protected:
  struct End {
    Recorder recorder;
    std::unique_ptr<Trunk> trunk;
    std::unique_ptr<TcpWorker> worker;
  };

  void SetUp() override {
    for (int i : {0, 1}) MakeEnd(i, 2, {kHost});
    Meet({ends[0].worker.get(), ends[1].worker.get()});
    ASSERT_TRUE(PumpUntil([&] { return Heard(0) == 1 && Heard(1) == 1; }));
    for (End& end : ends) end.recorder.texts.clear();
  }
  ~TwoEnds() override {
    for (End& end : ends) end.worker.reset();
  }

  void MakeEnd(int rank, int world_size, const std::set<uint32_t>& hosts) {
    End& end = ends[rank];
    end.worker.reset();
    auto trunk = Trunk::Create(kHost, MembersOf(rank, world_size, kToken));
    ASSERT_TRUE(trunk.ok()) << trunk.status();
    end.trunk = *std::move(trunk);
    end.worker = Join(rank, end.recorder, world_size);
    ASSERT_TRUE(end.worker->AcceptFrom(hosts).ok());
  }
  std::unique_ptr<TcpWorker> Join(int rank, Recorder& recorder, int world_size = 2) {
    auto worker = TcpWorker::Create(*ends[rank].trunk, recorder, World(world_size));
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }
  // Connects the workers of ranks 0 and 1, and has each say hello.
  void Meet(const std::vector<TcpWorker*>& workers) {
    for (int i : {0, 1}) {
      ASSERT_TRUE(workers[i]->Connect(1 - i, workers[1 - i]->address()).ok());
      workers[i]->Post(1 - i, From(i), "hello");
    }
  }
  size_t Heard(int i) const { return ends[i].recorder.texts.size(); }

  bool PumpUntil(const std::function<bool()>& is_done) {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    while (!is_done()) {
      for (End& end : ends) {
        if (end.worker != nullptr) end.worker->Progress();
      }
      if (absl::Now() > until) return false;
    }
    return true;
  }

  // Where a trunk listens, of a worker's address.
  static sockaddr_in ListenAddress(const TcpWorker& worker) {
    return *ParseAddress(worker.address().substr(0, worker.address().find('/')));
  }

  // A connection to worker 1 that sends `bytes`; whether it is closed or refused.
  bool IsTurnedAway(const std::string& bytes) {
    const auto stranger = Connect(kHost, ListenAddress(*ends[1].worker));
    EXPECT_TRUE(stranger.ok());
    return IsClosedAfter(bytes, stranger->get());
  }
  bool IsClosedAfter(const std::string& bytes, int socket) {
    size_t sent = 0;
    return PumpUntil([&] {
      if (sent < bytes.size()) {
        const ssize_t count =
            send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) sent += static_cast<size_t>(count);
      }
      char byte;
      const ssize_t count = recv(socket, &byte, 1, MSG_DONTWAIT);
      return count == 0 || (count < 0 && (errno == ECONNRESET || errno == ECONNREFUSED));
    });
  }

  End ends[2];
};

}  // namespace pelton::tcp

#endif  // PELTON_COMM_TRANSPORT_TCP_TEST_ENDS_H_
