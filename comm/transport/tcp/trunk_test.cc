// What workers that share a connection have to do with each other.
#include "comm/transport/tcp/trunk.h"

#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "comm/transport/open_descriptors.h"
#include "comm/transport/tcp/test_ends.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::tcp {
namespace {

using network::Header;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using TrunkTest = TwoEnds;

TEST_F(TrunkTest, FurtherWorkersShareTheConnection) {
  const size_t before = OpenDescriptors();
  std::vector<Recorder> recorders(20);
  std::vector<std::unique_ptr<TcpWorker>> workers;
  for (size_t i = 0; i < recorders.size(); i += 2) {
    for (int rank : {0, 1}) workers.push_back(Join(rank, recorders[i + rank]));
    Meet({workers[i].get(), workers[i + 1].get()});
  }
  ASSERT_TRUE(PumpUntil([&] { return recorders.back().texts.size() == 1; }));
  EXPECT_EQ(OpenDescriptors(), before);
  for (const Recorder& recorder : recorders) EXPECT_THAT(recorder.texts, ElementsAre("hello"));
}

// Whoever sleeps for a worker is woken when another worker's thread has read what came for it.
TEST_F(TrunkTest, WhatCameForAnotherWorkerRousesIt) {
  Recorder recorders[2];
  const auto mine = Join(0, recorders[0]);
  const auto theirs = Join(1, recorders[1]);
  Meet({mine.get(), theirs.get()});
  recorders[0].rouses = ends[0].recorder.rouses = 0;
  ASSERT_TRUE(PumpUntil([&] { return recorders[0].texts.size() == 1; }));
  EXPECT_GE(recorders[0].rouses, 1);
  EXPECT_EQ(ends[0].recorder.rouses, 0);
}

TEST_F(TrunkTest, ADeclineInAnotherWorkersTurnRousesIt) {
  Recorder recorders[2];
  const auto mine = Join(0, recorders[0]);
  const auto theirs = Join(1, recorders[1]);
  Meet({mine.get(), theirs.get()});
  recorders[1].keeps = false;
  const Header header = From(0);
  const std::string text(100'000, 'x');
  Flag sent;
  ASSERT_TRUE(mine->Send(1, {&header, text.data(), text.size(), true, &sent}).ok());
  recorders[0].rouses = 0;
  ASSERT_TRUE(PumpUntil([&] { return sent.calls == 1; }));
  EXPECT_GE(recorders[0].rouses, 1);
}

TEST_F(TrunkTest, AnEndInAnotherWorkersTurnRousesIt) {
  Recorder recorders[2];
  const auto mine = Join(0, recorders[0]);
  const auto theirs = Join(1, recorders[1]);
  Meet({mine.get(), theirs.get()});
  ASSERT_TRUE(PumpUntil([&] { return recorders[1].texts.size() == 1; }));
  // More than the kernel takes at once, so that it waits for room.
  const Header header = From(0);
  const std::string text(kMaxMessageBytes, 'x');
  std::vector<Flag> sent(2000);
  for (Flag& flag : sent) {
    ASSERT_TRUE(mine->Send(1, {&header, text.data(), text.size(), false, &flag}).ok());
  }
  ASSERT_EQ(sent.back().calls, 0);
  recorders[0].rouses = 0;
  ASSERT_TRUE(PumpUntil([&] { return sent.back().calls == 1; }));
  EXPECT_GE(recorders[0].rouses, 1);
}

TEST_F(TrunkTest, ALossIsToldToAllWorkersAndToThoseThatComeLater) {
  Recorder recorders[2];
  const auto second = Join(0, recorders[0]);
  ends[1].worker.reset();
  ends[1].trunk.reset();
  ASSERT_TRUE(PumpUntil([&] { return !ends[0].recorder.lost.empty(); }));
  EXPECT_THAT(recorders[0].lost, ElementsAre(1));
  const auto third = Join(0, recorders[1]);
  ASSERT_TRUE(third->Connect(1, "127.0.0.1:9/1").ok());
  EXPECT_THAT(recorders[1].lost, ElementsAre(1));
}

// Rank 0, which connects to all others, has a door, too: at which they find that it has ended.
TEST_F(TrunkTest, ALowestRankThatEndsBeforeItConnectsIsLost) {
  for (int i : {0, 1}) MakeEnd(i, 2, {kHost});
  const std::string address = ends[0].worker->address();
  ends[0].worker.reset();
  ends[0].trunk.reset();
  ends[1].recorder.lost.clear();
  ASSERT_TRUE(ends[1].worker->Connect(0, address).ok());
  EXPECT_TRUE(PumpUntil([&] { return !ends[1].recorder.lost.empty(); }));
  EXPECT_THAT(ends[1].recorder.lost, ElementsAre(0));
}

// A host that answers nothing is knocked at by one socket at a time.
TEST_F(TrunkTest, KnocksDoNotPileUp) {
  MakeEnd(1, 2, {kHost});
  auto door = Listen(kHost, 0);
  ASSERT_TRUE(door.ok());
  std::vector<Descriptor> fill;
  for (int i = 0; i < 4; ++i) {
    fill.push_back(*Connect(kHost, *ParseAddress(AddressOf(door->get()))));
  }
  ASSERT_TRUE(ends[1].worker->Connect(0, AddressOf(door->get()) + "/1").ok());
  const size_t before = OpenDescriptors();
  const absl::Time until = absl::Now() + absl::Seconds(4);
  ASSERT_TRUE(PumpUntil([&] { return absl::Now() > until; }));
  EXPECT_LE(OpenDescriptors(), before + 1);
}

// A peer that asks without end and reads none of the answers is lost, and takes no memory.
TEST_F(TrunkTest, APeerThatReadsNoAnswersIsLost) {
  MakeEnd(1, 2, {kHost});
  auto peer = Connect(kHost, ListenAddress(*ends[1].worker));
  ASSERT_TRUE(peer.ok());
  std::string bytes = Greeting(0, 1, 2);
  Frame nobodys = FrameOf(FrameType::kMessage);
  nobodys.port = 99;
  std::string flood;
  for (int i = 0; i < 1000; ++i) flood += Bytes(nobodys) + Bytes(From(0));
  size_t sent = 0;
  EXPECT_TRUE(PumpUntil([&] {
    const ssize_t count =
        send(peer->get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) sent += static_cast<size_t>(count);
    if (sent == bytes.size()) {
      bytes = flood;
      sent = 0;
    }
    return !ends[1].recorder.lost.empty();
  }));
  EXPECT_THAT(std::string(ends[1].recorder.loss.message()), HasSubstr("reads nothing"));
}

// A worker that is gone is told of to whoever sends to it.
TEST_F(TrunkTest, WhoSendsToAClosedWorkerLosesThatPeer) {
  Recorder recorders[2];
  const auto mine = Join(0, recorders[0]);
  const auto theirs = Join(1, recorders[1]);
  Meet({mine.get(), theirs.get()});
  theirs->Close();
  mine->Post(1, From(0), "to nobody");
  ASSERT_TRUE(PumpUntil([&] { return !recorders[0].lost.empty(); }));
  EXPECT_THAT(recorders[0].lost, ElementsAre(1));
  EXPECT_THAT(ends[0].recorder.lost, IsEmpty());
}

// Threads: one. Owns: a second pair of workers that share the connection of the first.
class TwoPairsTest : public TwoEnds {
 protected:
  void SetUp() override {
    TwoEnds::SetUp();
    for (int rank : {0, 1}) second[rank] = Join(rank, recorders[rank]);
    Meet({second[0].get(), second[1].get()});
    ASSERT_TRUE(
        PumpUntil([&] { return recorders[0].texts.size() + recorders[1].texts.size() == 2; }));
  }
  // The flags and the memory end before the ends do.
  ~TwoPairsTest() override {
    for (End& end : ends) end.worker.reset();
    for (auto& worker : second) worker.reset();
  }
  // Has end 1 fetch `out` of end 0 into `in`, until some of it has come.
  void BeginTransfer() {
    const Header header = From(0);
    ASSERT_TRUE(ends[0].worker->Send(1, {&header, out.data(), out.size(), true, &sent}).ok());
    ASSERT_TRUE(PumpUntil([&] { return ends[1].recorder.offers.size() == 1; }));
    ASSERT_TRUE(ends[1].worker->Pull(ends[1].recorder.offers[0], in.data(), &pulled).ok());
    ASSERT_TRUE(PumpUntil([&] { return in[0] == 'x'; }));
    ASSERT_EQ(pulled.calls, 0);
  }
  // What the second pair sends comes whole, whatever was under way before it.
  void ExpectThatTheOthersGoOn() {
    for (int rank : {0, 1}) {
      recorders[rank].texts.clear();
      second[1 - rank]->Post(rank, From(1 - rank), "still there");
    }
    EXPECT_TRUE(PumpUntil([&] {
      second[0]->Progress();
      second[1]->Progress();
      return recorders[0].texts.size() + recorders[1].texts.size() == 2;
    }));
    for (const Recorder& recorder : recorders) {
      EXPECT_THAT(recorder.texts, ElementsAre("still there"));
      EXPECT_THAT(recorder.lost, IsEmpty());
    }
  }

  Recorder recorders[2];
  std::unique_ptr<TcpWorker> second[2];
  std::string out = std::string(size_t{32} << 20, 'x');
  std::string in = std::string(size_t{32} << 20, '-');
  Flag sent;
  Flag pulled;
};

// A long message of one worker does not wait for all those that another one has queued before it.
TEST_F(TwoPairsTest, LongMessagesOfTwoWorkersTakeTurns) {
  constexpr size_t kQueue = 4;
  const Header header = From(0);
  const std::string other(size_t{1} << 20, 'y');
  std::string target(other.size(), '-');
  std::vector<Flag> left(kQueue + 1);
  std::vector<Flag> came(kQueue + 1);
  for (size_t i = 0; i < kQueue; ++i) {
    ASSERT_TRUE(ends[0].worker->Send(1, {&header, out.data(), out.size(), true, &left[i]}).ok());
  }
  ASSERT_TRUE(second[0]->Send(1, {&header, other.data(), other.size(), true, &left[kQueue]}).ok());
  ASSERT_TRUE(PumpUntil(
      [&] { return ends[1].recorder.offers.size() == kQueue && recorders[1].offers.size() == 1; }));
  for (size_t i = 0; i < kQueue; ++i) {
    ASSERT_TRUE(ends[1].worker->Pull(ends[1].recorder.offers[i], in.data(), &came[i]).ok());
  }
  ASSERT_TRUE(second[1]->Pull(recorders[1].offers[0], target.data(), &came[kQueue]).ok());
  ASSERT_TRUE(PumpUntil([&] { return came[kQueue].calls == 1; }));
  EXPECT_EQ(came[0].calls, 0);
  EXPECT_EQ(target, other);
  EXPECT_TRUE(
      PumpUntil([&] { return came[kQueue - 1].calls == 1 && left[kQueue - 1].calls == 1; }));
}

// The memory of what it fetched is its own again at once (OWN-1).
TEST_F(TwoPairsTest, AWorkerThatClosesWhileItFetchesLeavesItsMemoryAlone) {
  BeginTransfer();
  ends[1].worker->Close();
  EXPECT_EQ(pulled.calls, 1);
  EXPECT_FALSE(pulled.last.ok());
  in.assign(in.size(), '-');
  ExpectThatTheOthersGoOn();
  EXPECT_TRUE(PumpUntil([&] {
    second[1]->Progress();
    return sent.calls == 1;
  }));
  EXPECT_EQ(in, std::string(in.size(), '-'));
  ExpectThatTheOthersGoOn();
}

TEST_F(TwoPairsTest, AWorkerThatClosesWhileItIsFetchedFromLeavesItsMemoryAlone) {
  BeginTransfer();
  ends[0].worker->Close();
  EXPECT_EQ(sent.calls, 1);
  EXPECT_FALSE(sent.last.ok());
  out.assign(out.size(), '?');  // nobody may read it any more
  ExpectThatTheOthersGoOn();
  EXPECT_EQ(in.find('?'), std::string::npos);
  ends[1].worker->Close();
  EXPECT_EQ(pulled.calls, 1);
  ExpectThatTheOthersGoOn();
  EXPECT_EQ(ends[1].trunk->offer_count(Rank(0)), 0u);
}

// Jobs open and close communicators all day over the same connections.
TEST_F(TwoPairsTest, AnOfferThatIsFetchedFromAClosedWorkerIsForgottenWithItsReceiver) {
  const Header header = From(0);
  ASSERT_TRUE(ends[0].worker->Send(1, {&header, out.data(), out.size(), true, &sent}).ok());
  ASSERT_TRUE(PumpUntil([&] { return ends[1].recorder.offers.size() == 1; }));
  ends[0].worker->Close();
  ASSERT_TRUE(ends[1].worker->Pull(ends[1].recorder.offers[0], in.data(), &pulled).ok());
  ends[1].worker->Close();
  EXPECT_EQ(pulled.calls, 1);
  ASSERT_EQ(ends[1].trunk->offer_count(Rank(0)), 1u);
  EXPECT_TRUE(PumpUntil([&] {
    for (auto& worker : second) worker->Progress();
    return ends[1].trunk->offer_count(Rank(0)) == 0;
  }));
  ExpectThatTheOthersGoOn();
}

// Notes that were posted leave although their worker is closed; messages to a closed worker and
// offers to it harm nobody.
TEST_F(TwoPairsTest, WhatWasPostedLeavesAfterTheClose) {
  BeginTransfer();
  ends[0].worker->Post(1, From(0), "the last words");
  ends[0].worker->Close();
  EXPECT_TRUE(PumpUntil([&] {
    second[0]->Progress();
    return Heard(1) == 1;
  }));
  EXPECT_THAT(ends[1].recorder.texts, ElementsAre("the last words"));
  const Header header = From(1);
  Flag offered;
  ASSERT_TRUE(ends[1].worker->Send(0, {&header, in.data(), in.size(), true, &offered}).ok());
  ends[1].worker->Post(0, From(1), "to nobody");
  EXPECT_TRUE(PumpUntil([&] {
    second[0]->Progress();
    return offered.calls == 1;
  }));
  ExpectThatTheOthersGoOn();
}

}  // namespace
}  // namespace pelton::tcp
