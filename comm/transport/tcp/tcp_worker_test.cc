// Two workers in one thread, and strangers at their doors.
#include "comm/transport/tcp/tcp_worker.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/transport/tcp/frame.h"
#include "comm/transport/tcp/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::tcp {
namespace {

using network::Header;
using network::Payload;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint8_t kPassword = 77;

// A header as a member would make it.
Header From(int source, uint64_t ticket = 0) {
  Header header;
  header.key[0] = kPassword;
  header.source = static_cast<uint32_t>(source);
  header.ticket = ticket;
  return header;
}

// Keeps what comes in. Threads: one. Owns: copies of it.
class Recorder final : public network::Receiver {
 public:
  bool Knows(const Header& header) const override { return header.key[0] == kPassword; }
  bool Receive(const Header& header, const Payload& payload) override {
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

  bool keeps = true;
  std::vector<uint64_t> tickets;
  std::vector<std::string> texts;
  std::vector<Payload> offers;
  std::vector<int> lost;
  absl::Status loss;
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

// Threads: one. Owns: a pair of connected workers; `ends[i]` is peer i.
class TcpWorkerTest : public testing::Test {
 protected:
  struct End {
    Recorder recorder;
    std::unique_ptr<TcpWorker> worker;
  };

  void SetUp() override {
    for (End& end : ends) {
      auto worker = TcpWorker::Create(htonl(INADDR_LOOPBACK), end.recorder, 2);
      ASSERT_TRUE(worker.ok()) << worker.status();
      end.worker = *std::move(worker);
      ASSERT_TRUE(end.worker->Admit({htonl(INADDR_LOOPBACK)}).ok());
    }
    for (int i : {0, 1}) {
      ASSERT_TRUE(ends[i].worker->Connect(1 - i, ends[1 - i].worker->address()).ok());
      ends[i].worker->Post(1 - i, From(i), "hello");
    }
    ASSERT_TRUE(PumpUntil([&] { return !ends[0].recorder.texts.empty() && Heard(1) == 1; }));
    for (End& end : ends) end.recorder.texts.clear();
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

  // A connection to worker 0 that sends `bytes`; whether it is closed or refused.
  bool IsTurnedAway(const std::string& bytes) {
    const auto stranger = Connect(htonl(INADDR_LOOPBACK), *ParseAddress(ends[0].worker->address()));
    EXPECT_TRUE(stranger.ok());
    size_t sent = 0;
    return PumpUntil([&] {
      if (sent < bytes.size()) {
        const ssize_t count = send(stranger->get(), bytes.data() + sent, bytes.size() - sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) sent += static_cast<size_t>(count);
      }
      char byte;
      const ssize_t count = recv(stranger->get(), &byte, 1, MSG_DONTWAIT);
      return count == 0 || (count < 0 && (errno == ECONNRESET || errno == ECONNREFUSED));
    });
  }

  End ends[2];
};

std::string Bytes(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof frame);
}
std::string Bytes(const Header& header) {
  return std::string(reinterpret_cast<const char*>(&header), sizeof header);
}

TEST_F(TcpWorkerTest, MessagesArriveInOrderAndWhole) {
  std::vector<std::string> texts;
  for (size_t size : {0, 1, 95, 96, 97, 4000, 8192, 3}) texts.emplace_back(size, 'a' + size % 7);
  for (const std::string& text : texts) ends[0].worker->Post(1, From(0), text);
  ASSERT_TRUE(PumpUntil([&] { return Heard(1) == texts.size(); }));
  EXPECT_EQ(ends[1].recorder.texts, texts);
  EXPECT_TRUE(ends[0].worker->IsPosted());
}

// Fetched bytes come in pieces, and what is short does not wait for the last of them.
TEST_F(TcpWorkerTest, ShortMessagesOvertakeTheBytesOfALongOne) {
  const Header header = From(0, 5);
  std::vector<int32_t> out(size_t{16} << 20);
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int32_t>(i);
  std::vector<int32_t> in(out.size());
  Flag sent;
  const size_t bytes = out.size() * sizeof(int32_t);
  ASSERT_EQ(*ends[0].worker->Send(1, {&header, out.data(), bytes, true, &sent}), false);
  ASSERT_TRUE(PumpUntil([&] { return ends[1].recorder.offers.size() == 1; }));
  EXPECT_EQ(sent.calls, 0);
  Flag pulled;
  ASSERT_EQ(*ends[1].worker->Pull(ends[1].recorder.offers[0], in.data(), &pulled), false);
  ASSERT_TRUE(PumpUntil([&] { return in[1] == 1; }));
  ends[0].worker->Post(1, From(0), "now");
  ASSERT_TRUE(PumpUntil([&] { return Heard(1) == 1; }));
  EXPECT_EQ(pulled.calls, 0);
  ASSERT_TRUE(PumpUntil([&] { return pulled.calls == 1; }));
  EXPECT_EQ(pulled.last, absl::OkStatus());
  EXPECT_EQ(sent.calls, 1);
  EXPECT_EQ(in, out);
}

TEST_F(TcpWorkerTest, AnOfferThatIsDeclinedIsDone) {
  ends[1].recorder.keeps = false;
  const Header header = From(0);
  const std::string text(100'000, 'x');
  Flag sent;
  ASSERT_TRUE(ends[0].worker->Send(1, {&header, text.data(), text.size(), true, &sent}).ok());
  ASSERT_TRUE(PumpUntil([&] { return sent.calls == 1; }));
  EXPECT_EQ(sent.last, absl::OkStatus());
}

// All that a peer sent before its end comes in, and then it is lost; so are its offers.
TEST_F(TcpWorkerTest, APeerThatEndsIsHeardToTheEndAndThenLost) {
  const Header header = From(1);
  const std::string text(100'000, 'x');
  Flag offered;
  ASSERT_TRUE(ends[1].worker->Send(0, {&header, text.data(), text.size(), true, &offered}).ok());
  for (uint64_t i = 0; i < 20; ++i) ends[1].worker->Post(0, From(1, i), std::string(1000, 'y'));
  ASSERT_TRUE(PumpUntil([&] { return ends[1].worker->Flush(); }));
  ends[1].worker->Close();
  EXPECT_EQ(offered.calls, 1);
  EXPECT_FALSE(offered.last.ok());
  ASSERT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_EQ(Heard(0), 20u);
  EXPECT_THAT(ends[0].recorder.lost, ElementsAre(1));
  EXPECT_EQ(ends[0].recorder.loss.code(), absl::StatusCode::kUnavailable);
  std::vector<char> target(text.size());
  Flag pulled;
  ASSERT_EQ(ends[0].recorder.offers.size(), 1u);
  EXPECT_FALSE(ends[0].worker->Pull(ends[0].recorder.offers[0], target.data(), &pulled).ok());
  EXPECT_FALSE(ends[0].worker->Send(1, {&header, text.data(), 5, false, &pulled}).ok());
}

TEST_F(TcpWorkerTest, StrangersAreTurnedAwayAndHarmNobody) {
  Header wrong = From(1);
  wrong.key[0] = 1;
  Header beyond = From(2);
  Frame message;
  message.size_bytes = 0;
  Frame endless;
  endless.size_bytes = uint64_t{1} << 60;
  Frame body;
  body.type = FrameType::kBody;
  body.size_bytes = 100;
  Frame fetch;
  fetch.type = FrameType::kFetch;
  for (const std::string& bytes :
       {std::string(200, '\xff'), std::string("GET / HTTP/1.1\r\n") + std::string(200, ' '),
        Bytes(message) + Bytes(wrong), Bytes(message) + Bytes(beyond),
        Bytes(endless) + Bytes(From(1)), Bytes(body), Bytes(fetch),
        // Who knows the password and then asks for what nobody offered him.
        Bytes(message) + Bytes(From(1)) + Bytes(body),
        Bytes(message) + Bytes(From(1)) + Bytes(message) + Bytes(From(0))}) {
    EXPECT_TRUE(IsTurnedAway(bytes)) << bytes.size();
  }
  EXPECT_THAT(ends[0].recorder.lost, IsEmpty());
  ends[0].recorder.texts.clear();
  ends[1].worker->Post(0, From(1), "still there");
  ASSERT_TRUE(PumpUntil([&] { return Heard(0) == 1; }));
  EXPECT_THAT(ends[0].recorder.texts, ElementsAre("still there"));
}

TEST_F(TcpWorkerTest, OnlyAdmittedHostsComeIn) {
  ends[0].worker.reset();
  auto worker = TcpWorker::Create(htonl(INADDR_LOOPBACK), ends[0].recorder, 2);
  ASSERT_TRUE(worker.ok()) << worker.status();
  ends[0].worker = *std::move(worker);
  ASSERT_TRUE(ends[0].worker->Admit({htonl(INADDR_LOOPBACK + 1)}).ok());
  EXPECT_TRUE(IsTurnedAway(""));
}

// An offer under a number that is in use, and an empty piece of one that nobody fetched: both would
// take away what the receiver still holds.
TEST_F(TcpWorkerTest, WhoKnowsThePasswordCannotTakeAnOfferAwayFromItsReceiver) {
  Frame message;
  Frame offer;
  offer.type = FrameType::kOffer;
  offer.id = 7;
  offer.size_bytes = 100;
  Frame empty;
  empty.type = FrameType::kBody;
  empty.id = 7;
  const std::string hello = Bytes(message) + Bytes(From(1));
  const std::string offered = Bytes(offer) + Bytes(From(1));
  EXPECT_TRUE(IsTurnedAway(hello + offered + offered));
  EXPECT_TRUE(IsTurnedAway(hello + Bytes(empty)));
  ASSERT_EQ(ends[0].recorder.offers.size(), 1u);
  ends[0].worker->Release(ends[0].recorder.offers[0]);
  EXPECT_THAT(ends[0].recorder.lost, IsEmpty());
}

// So many that no more are kept; the oldest makes room for a peer.
TEST_F(TcpWorkerTest, SilentStrangersKeepNoPeerOut) {
  const sockaddr_in address = *ParseAddress(ends[0].worker->address());
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    auto stranger = Connect(htonl(INADDR_LOOPBACK), address);
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    strangers.push_back(*std::move(stranger));
    ends[0].worker->Progress();
  }
  const auto peer = Connect(htonl(INADDR_LOOPBACK), address);
  ASSERT_TRUE(peer.ok());
  const std::string bytes = Bytes(Frame{}) + Bytes(From(1, 99));
  size_t sent = 0;
  EXPECT_TRUE(PumpUntil([&] {
    const ssize_t count =
        send(peer->get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent += static_cast<size_t>(count);
    return Heard(0) == 1;
  }));
  EXPECT_THAT(ends[0].recorder.tickets, Contains(99));
}

TEST_F(TcpWorkerTest, WantOfDescriptorsIsToldByWhoHasNone) {
  const auto stranger = Connect(htonl(INADDR_LOOPBACK), *ParseAddress(ends[0].worker->address()));
  ASSERT_TRUE(stranger.ok());
  EXPECT_EQ(ends[0].worker->Trouble(), absl::OkStatus());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = 0;  // those that are open stay open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(PumpUntil([&] { return !ends[0].worker->Trouble().ok(); }));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(ends[0].worker->Trouble().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ends[0].worker->Trouble().message()),
              HasSubstr("accepting a connection: Too many open files (this process may have 0"));
  EXPECT_TRUE(PumpUntil([&] { return ends[0].worker->Trouble().ok(); }));
}

// Peers that are only sockets. Threads: one. Owns: their connections to worker 0 and from it.
class BarePeersTest : public TcpWorkerTest {
 protected:
  // Gives worker 0 `count` peers beside itself, 1 to `count`, in place of the one it has.
  void MakePeers(int count) {
    auto worker = TcpWorker::Create(htonl(INADDR_LOOPBACK), ends[0].recorder, count + 1);
    ASSERT_TRUE(worker.ok()) << worker.status();
    ends[0].worker = *std::move(worker);
    ends[1].worker.reset();
    ASSERT_TRUE(ends[0].worker->Admit({htonl(INADDR_LOOPBACK)}).ok());
    auto door = Listen(htonl(INADDR_LOOPBACK), 1);
    ASSERT_TRUE(door.ok());
    for (int peer = 1; peer <= count; ++peer) Meet(peer, *door);
  }

  void Meet(int peer, const Descriptor& door) {
    ASSERT_TRUE(ends[0].worker->Connect(peer, AddressOf(door.get())).ok());
    auto made = Connect(htonl(INADDR_LOOPBACK), *ParseAddress(ends[0].worker->address()));
    ASSERT_TRUE(made.ok()) << made.status();
    speak.push_back(*std::move(made));
    const std::string bytes = Bytes(Frame{}) + Bytes(From(peer, 99));
    const size_t heard_before = Heard(0);
    size_t sent = 0;
    ASSERT_TRUE(PumpUntil([&] {
      const ssize_t count = send(speak.back().get(), bytes.data() + sent, bytes.size() - sent,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) sent += static_cast<size_t>(count);
      return Heard(0) > heard_before;
    }));
    in_addr_t host = 0;
    hear.emplace_back();
    ASSERT_TRUE(PumpUntil([&] {
      hear.back() = *Accept(door.get(), &host);
      return hear.back().is_open();
    }));
    EXPECT_THAT(ends[0].recorder.lost, IsEmpty());
  }

  std::vector<Descriptor> speak;  // of peer i + 1
  std::vector<Descriptor> hear;
};

// Nothing reaches the socket any more and it says nothing, as if its host were gone.
void Vanish(const Descriptor& socket) {
  const int off = 0;
  setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
  sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &drop};
  ASSERT_EQ(setsockopt(socket.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
}

// Keepalive does not run while there is something unacknowledged.
TEST_F(BarePeersTest, AHostThatVanishedIsLostAndOneThatOnlyDoesNotReadIsNot) {
  MakePeers(2);
  Vanish(hear[0]);
  ends[0].worker->Post(1, From(0), "to nobody");
  for (int i = 0; i < 4000; ++i) ends[0].worker->Post(2, From(0), std::string(8000, 'x'));
  EXPECT_FALSE(ends[0].worker->Flush());
  EXPECT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_THAT(ends[0].recorder.lost, ElementsAre(1));
  EXPECT_THAT(std::string(ends[0].recorder.loss.message()), HasSubstr("host does not answer"));
}

// Peer 1 can be heard, and nothing can be sent to it any more.
TEST_F(BarePeersTest, APeerThatCannotBeSentToIsLostThoughItIsHeard) {
  MakePeers(1);
  // The kernel resets a connection that is closed with something unread.
  ends[0].worker->Post(1, From(0), "unread");
  ASSERT_TRUE(PumpUntil([&] {
    char first = 0;
    return recv(hear[0].get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }));
  hear[0] = Descriptor();
  EXPECT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_THAT(ends[0].recorder.lost, ElementsAre(1));
}

TEST_F(TcpWorkerTest, NothingListensAfterBar) {
  ASSERT_TRUE(ends[0].worker->Bar().ok());
  EXPECT_TRUE(IsTurnedAway(""));
  ends[1].worker->Post(0, From(1), "through");
  ASSERT_TRUE(PumpUntil([&] { return Heard(0) == 1; }));
}

}  // namespace
}  // namespace pelton::tcp
