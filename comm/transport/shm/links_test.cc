// What a rank's connections tell of a peer, whichever thread takes it from the socket.
#include "comm/transport/shm/links.h"

#include <sys/socket.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/shm/handshake.h"
#include "comm/transport/shm/mapping.h"
#include "comm/transport/shm/socket.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/sync.h"
#include "core/memory/region.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

// Rank 0, and the socket that rank 1 would have. Threads: any. Owns: both ends.
class Pair {
 public:
  Pair()
      : links_(std::make_unique<Links>(
            0, Peers(), [this](int, const absl::Status& reason) { Lose(reason); })) {}

  Links& links() { return *links_; }
  void Leave() { links_.reset(); }
  int peer() const { return theirs_.get(); }
  void Die() { theirs_ = Descriptor(); }
  // What was told of the loss; OK: nothing within some seconds. Blocks: until then.
  absl::Status AwaitLoss() {
    MutexLock lock(&mutex_);
    const absl::Time until = Clock::Real().Now() + absl::Seconds(5);
    while (loss_.ok() && !changed_.WaitWithDeadline(&mutex_, until)) {
    }
    return loss_;
  }

 private:
  std::vector<Peer> Peers() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    theirs_ = Descriptor(ends[1]);
    std::vector<Peer> peers(2);
    peers[1].socket = Descriptor(ends[0]);
    peers[1].name = 1;
    return peers;
  }
  void Lose(const absl::Status& reason) {
    MutexLock lock(&mutex_);
    loss_ = reason;
    changed_.SignalAll();
  }

  Mutex mutex_;
  CondVar changed_;
  absl::Status loss_ ABSL_GUARDED_BY(mutex_);
  Descriptor theirs_;
  std::unique_ptr<Links> links_;  // last: its thread uses the others
};

Frame FrameOf(Frame::Type type) {
  Frame frame;
  frame.type = type;
  frame.rank = 1;
  return frame;
}

// A rank that leaves may live on for long, as rank 0 does with the job's coordinator.
TEST(LinksTest, AGoodbyeThatALookForARegionTakesFromTheSocketIsTold) {
  for (int i = 0; i < 20; ++i) {
    Pair pair;
    ASSERT_TRUE(Send(pair.peer(), FrameOf(Frame::kGoodbye)).ok());
    EXPECT_EQ(pair.links().FindRegion(1, RegionId(7)), nullptr);  // mostly before the watcher
    const absl::Status loss = pair.AwaitLoss();
    ASSERT_TRUE(absl::StrContains(loss.message(), "rank 1 (pid 0) has left")) << loss;
    EXPECT_TRUE(pair.links().HasLeft(1));
  }
}

int OpenDescriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

// The memory of a communicator that this rank has given up stays nowhere.
TEST(LinksTest, WhatIsOpenedAfterThisRankHasGivenUpIsClosedAgain) {
  Pair pair;
  const std::vector<Rank> members = {Rank(1), Rank(0)};
  const auto take = [&](uint32_t id, absl::Duration patience) {
    return pair.links().TakeArena(members, CommunicatorId(id), Generation(1),
                                  Clock::Real().Now() + patience);
  };
  EXPECT_TRUE(absl::IsDeadlineExceeded(take(7, absl::ZeroDuration()).status()));
  const absl::StatusOr<Descriptor> memory = NewSharedMemory(4096, "arena");
  ASSERT_TRUE(memory.ok());
  const int before = OpenDescriptors();
  for (const uint32_t id : {7, 8}) {
    Frame frame = FrameOf(Frame::kOpen);
    frame.communicator = id;
    frame.generation = 1;
    ASSERT_TRUE(Send(pair.peer(), frame, "", memory->get()).ok());
  }
  EXPECT_TRUE(take(8, absl::Seconds(5)).ok());
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_TRUE(absl::IsDeadlineExceeded(take(7, absl::ZeroDuration()).status()));
}

// A queue takes some hundred messages.
TEST(LinksTest, AGoodbyeComesBehindAllThatAPeerHasNotTakenYet) {
  Pair pair;
  constexpr int kCount = 1000;
  for (int i = 0; i < kCount; ++i) pair.links().EndLoan(RegionId(7), 1);
  std::thread leaving([&pair] { pair.Leave(); });
  const absl::Time until = Clock::Real().Now() + absl::Seconds(5);
  std::vector<uint32_t> types;
  for (auto message = Receive(pair.peer(), until); message.ok();
       message = Receive(pair.peer(), until)) {
    types.push_back(message->frame.type);
  }
  leaving.join();
  ASSERT_EQ(types.size(), kCount + 1u);
  EXPECT_EQ(types.back(), Frame::kGoodbye);
}

TEST(LinksTest, WhatASocketSaysThatIsNoMessageEndsThePeer) {
  Pair pair;
  ASSERT_TRUE(Send(pair.peer(), FrameOf(Frame::kProof)).ok());
  pair.links().FindRegion(1, RegionId(7));
  const absl::Status loss = pair.AwaitLoss();
  EXPECT_TRUE(absl::IsInvalidArgument(loss)) << loss;
  EXPECT_TRUE(absl::StrContains(loss.message(), "rank 1 (pid 0)")) << loss;
  EXPECT_FALSE(pair.links().HasLeft(1));
}

TEST(LinksTest, ADeathIsToldAsOneAndOnce) {
  Pair pair;
  pair.Die();
  const absl::Status loss = pair.AwaitLoss();
  EXPECT_TRUE(absl::StrContains(loss.message(), "rank 1 (pid 0) died")) << loss;
  EXPECT_EQ(pair.links().FindRegion(1, RegionId(7)), nullptr);
  EXPECT_EQ(pair.links().LossOf(1), loss);
  EXPECT_EQ(pair.links().SendArena(1, CommunicatorId(1), Generation(1), -1), loss);
  const Rank first(1);
  EXPECT_EQ(pair.links()
                .TakeArena({&first, 1}, CommunicatorId(1), Generation(1), absl::InfiniteFuture())
                .status(),
            loss);
  EXPECT_FALSE(pair.links().HasLeft(1));
}

}  // namespace
}  // namespace pelton::shm
