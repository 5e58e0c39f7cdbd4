// Messages between two workers, and strangers at their doors.
#include "comm/transport/tcp/tcp_worker.h"

#include <linux/filter.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/transport/tcp/test_ends.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::tcp {
namespace {

using network::Header;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using TcpWorkerTest = TwoEnds;

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
  ends[0].worker->Post(1, From(0), "never read");
  ASSERT_TRUE(PumpUntil([&] { return ends[1].worker->Flush() && ends[1].worker->HasArrived(); }));
  ASSERT_TRUE(PumpUntil([&] { return ends[0].recorder.offers.size() == 1; }));
  ends[1].worker.reset();
  EXPECT_EQ(offered.calls, 1);
  EXPECT_FALSE(offered.last.ok());
  ends[1].trunk.reset();
  ASSERT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_EQ(Heard(0), 20u);
  EXPECT_THAT(ends[0].recorder.lost, ElementsAre(1));
  EXPECT_EQ(ends[0].recorder.loss.code(), absl::StatusCode::kUnavailable);
  std::vector<char> target(text.size());
  Flag pulled;
  EXPECT_FALSE(ends[0].worker->Pull(ends[0].recorder.offers[0], target.data(), &pulled).ok());
  EXPECT_FALSE(ends[0].worker->Send(1, {&header, text.data(), 5, false, &pulled}).ok());
}

TEST_F(TcpWorkerTest, StrangersAreTurnedAwayAndHarmNobody) {
  MakeEnd(1, 2, {kHost});  // which waits for peer 0
  const std::string greeting = Greeting(0, 1, 2);
  const Frame message = FrameOf(FrameType::kMessage);
  for (const std::string& bytes :
       {std::string(200, '\xff'), std::string("GET / HTTP/1.1\r\n") + std::string(200, ' '),
        Greeting(0, 1, 2, "another token"), Greeting(1, 0, 2), Greeting(2, 1, 3),
        Bytes(message) + Bytes(From(0)),
        Bytes(FrameOf(FrameType::kMessage, uint64_t{1} << 60)) + Bytes(From(0)),
        Bytes(FrameOf(FrameType::kBody, 100)), Bytes(FrameOf(FrameType::kFetch))}) {
    EXPECT_TRUE(IsTurnedAway(bytes)) << bytes.size();
  }
  EXPECT_THAT(ends[1].recorder.lost, IsEmpty());
  // Who holds the token is that peer, and lost when it does what no peer does.
  EXPECT_TRUE(IsTurnedAway(greeting + Bytes(message) + Bytes(From(1))));
  EXPECT_THAT(ends[1].recorder.lost, ElementsAre(0));
}

TEST_F(TcpWorkerTest, OnlyAdmittedHostsComeIn) {
  MakeEnd(1, 2, {htonl(INADDR_LOOPBACK + 1)});
  EXPECT_TRUE(IsTurnedAway(""));
}

// Threads: one. Owns: worker 1 of a trunk whose peer 0 is only a socket that knows the token.
class HostilePeerTest : public TwoEnds {
 protected:
  void SetUp() override {
    MakeEnd(1, 2, {kHost});
    auto made = Connect(kHost, ListenAddress(*ends[1].worker));
    ASSERT_TRUE(made.ok()) << made.status();
    peer = *std::move(made);
  }
  Descriptor peer;
};

// An offer under a number that is in use, and an empty piece of one that nobody fetched: both would
// take away what the receiver still holds.
TEST_F(HostilePeerTest, CannotTakeAnOfferAwayFromItsReceiver) {
  const std::string offer = Bytes(FrameOf(FrameType::kOffer, 100, 7)) + Bytes(From(0));
  EXPECT_TRUE(IsClosedAfter(Greeting(0, 1, 2) + offer + offer, peer.get()));
  ASSERT_EQ(ends[1].recorder.offers.size(), 1u);
  ends[1].worker->Release(ends[1].recorder.offers[0]);
  EXPECT_THAT(ends[1].recorder.lost, ElementsAre(0));
}

TEST_F(HostilePeerTest, IsLostWhenItSendsWhatNobodyAskedFor) {
  const std::string offer = Bytes(FrameOf(FrameType::kOffer, 100, 7)) + Bytes(From(0));
  const std::string empty = Bytes(FrameOf(FrameType::kBody, 0, 7));
  EXPECT_TRUE(IsClosedAfter(Greeting(0, 1, 2) + offer + empty, peer.get()));
  EXPECT_THAT(ends[1].recorder.lost, ElementsAre(0));
}

TEST_F(HostilePeerTest, MaySpeakToAPortThatIsNobodys) {
  Frame nobodys = FrameOf(FrameType::kMessage);
  nobodys.port = 99;
  const std::string bytes = Greeting(0, 1, 2) + Bytes(nobodys) + Bytes(From(0)) +
                            Bytes(FrameOf(FrameType::kWithdrawn, 0, 5)) +
                            Bytes(FrameOf(FrameType::kMessage)) + Bytes(From(0, 41));
  ASSERT_EQ(send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  EXPECT_TRUE(PumpUntil([&] { return Heard(1) == 1; }));
  EXPECT_THAT(ends[1].recorder.tickets, ElementsAre(41));
}

// So many that no more are kept; the oldest makes room for a peer.
TEST_F(HostilePeerTest, SilentStrangersKeepNoPeerOut) {
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    auto stranger = Connect(kHost, ListenAddress(*ends[1].worker));
    ASSERT_TRUE(stranger.ok()) << stranger.status();
    strangers.push_back(*std::move(stranger));
    ends[1].worker->Progress();
  }
  const auto late = Connect(kHost, ListenAddress(*ends[1].worker));
  ASSERT_TRUE(late.ok());
  const std::string bytes =
      Greeting(0, 1, 2) + Bytes(FrameOf(FrameType::kMessage)) + Bytes(From(0, 99));
  size_t sent = 0;
  EXPECT_TRUE(PumpUntil([&] {
    const ssize_t count =
        send(late->get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent += static_cast<size_t>(count);
    return Heard(1) == 1;
  }));
  EXPECT_THAT(ends[1].recorder.tickets, Contains(99));
}

TEST_F(HostilePeerTest, WantOfDescriptorsIsToldByWhoHasNone) {
  EXPECT_EQ(ends[1].worker->Trouble(), absl::OkStatus());
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  rlimit low = before;
  low.rlim_cur = 0;  // those that are open stay open
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_TRUE(PumpUntil([&] { return !ends[1].worker->Trouble().ok(); }));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(ends[1].worker->Trouble().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(ends[1].worker->Trouble().message()),
              HasSubstr("accepting a connection: Too many open files (this process may have 0"));
  EXPECT_TRUE(PumpUntil([&] { return ends[1].worker->Trouble().ok(); }));
}

// A peer that is to connect, and ends before it does, would be waited for until a deadline.
TEST_F(TcpWorkerTest, APeerThatEndsBeforeItConnectsIsLost) {
  MakeEnd(1, 2, {kHost});
  auto door = Listen(kHost, 1);
  ASSERT_TRUE(door.ok());
  const std::string address = AddressOf(door->get()) + "/1";
  ASSERT_TRUE(ends[1].worker->Connect(0, address).ok());
  const absl::Time until = absl::Now() + absl::Seconds(2);
  EXPECT_TRUE(PumpUntil([&] { return absl::Now() > until; }));
  EXPECT_THAT(ends[1].recorder.lost, IsEmpty());  // it may be slow
  *door = Descriptor();
  EXPECT_TRUE(PumpUntil([&] { return !ends[1].recorder.lost.empty(); }));
  EXPECT_THAT(ends[1].recorder.lost, ElementsAre(0));
}

// Peers that are only sockets, to which worker 0 connects. Threads: one. Owns: their ends.
class BarePeersTest : public TwoEnds {
 protected:
  // Gives worker 0 `count` peers beside itself, 1 to `count`, in place of the one it has.
  void MakePeers(int count) {
    ends[1].worker.reset();
    MakeEnd(0, count + 1, {kHost});
    auto door = Listen(kHost, 1);
    ASSERT_TRUE(door.ok());
    for (int peer = 1; peer <= count; ++peer) MeetPeer(peer, count + 1, *door);
    ends[0].recorder.lost.clear();
  }

  void MeetPeer(int peer, int world_size, const Descriptor& door) {
    ASSERT_TRUE(ends[0].worker->Connect(peer, AddressOf(door.get()) + "/1").ok());
    in_addr_t host = 0;
    peers.emplace_back();
    ASSERT_TRUE(PumpUntil([&] {
      peers.back() = *Accept(door.get(), &host);
      return peers.back().is_open();
    }));
    const std::string bytes =
        Greeting(peer, 0, world_size) + Bytes(FrameOf(FrameType::kMessage)) + Bytes(From(peer, 99));
    const size_t heard_before = Heard(0);
    ASSERT_EQ(send(peers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(PumpUntil([&] { return Heard(0) > heard_before; }));
  }

  std::vector<Descriptor> peers;  // of peer i + 1
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
  Vanish(peers[0]);
  ends[0].worker->Post(1, From(0), "to nobody");
  for (int i = 0; i < 4000; ++i) ends[0].worker->Post(2, From(0), std::string(8000, 'x'));
  EXPECT_FALSE(ends[0].worker->Flush());
  EXPECT_FALSE(ends[0].worker->HasArrived());
  EXPECT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_THAT(ends[0].recorder.lost, ElementsAre(1));
  EXPECT_THAT(std::string(ends[0].recorder.loss.message()), HasSubstr("host does not answer"));
}

// What a peer has sent is read although it closed with something unread, which resets a connection.
TEST_F(BarePeersTest, APeerThatResetsIsHeardToTheEnd) {
  MakePeers(1);
  ends[0].recorder.texts.clear();
  ends[0].worker->Post(1, From(0), "unread");
  ASSERT_TRUE(PumpUntil([&] {
    char first = 0;
    return recv(peers[0].get(), &first, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }));
  const std::string last = Bytes(FrameOf(FrameType::kMessage, 4)) + Bytes(From(1)) + "last";
  ASSERT_EQ(send(peers[0].get(), last.data(), last.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(last.size()));
  peers[0] = Descriptor();
  // The first one may fail, the second one does.
  for (int i = 0; i < 2; ++i) ends[0].worker->Post(1, From(0), "in vain");
  EXPECT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_THAT(ends[0].recorder.texts, ElementsAre("last"));
  EXPECT_THAT(ends[0].recorder.lost, ElementsAre(1));
}

TEST_F(TcpWorkerTest, NothingListensAfterBar) {
  const sockaddr_in door = ListenAddress(*ends[1].worker);
  ASSERT_TRUE(ends[1].worker->StopListening().ok());
  const auto stranger = Connect(kHost, door);
  EXPECT_TRUE(!stranger.ok() || IsClosedAfter("", stranger->get()));
  ends[1].worker->Post(0, From(1), "through");
  ASSERT_TRUE(PumpUntil([&] { return Heard(0) == 1; }));
}

}  // namespace
}  // namespace pelton::tcp
