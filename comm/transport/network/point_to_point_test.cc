// Sends and receives between ranks that are threads, over loopback and every wire.
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/network/test_ranks.h"
#include "comm/transport/open_descriptors.h"
#include "core/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#ifdef PELTON_OVER_UCX
#include "comm/transport/ucx/ucx_transport.h"
#else
#include "comm/transport/tcp/tcp_transport.h"
#endif

namespace pelton::network {
namespace {

using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

// Threads: one. Owns: a world with a communicator (id 1) of all ranks.
class World {
 public:
  World(int32_t size, TransportFactory factory) : transports_(MakeRanks(WorldSize(size), factory)) {
    communicators_.resize(transports_.size());
    RunTransports([&](Transport& transport, size_t rank) {
      auto opened = transport.Open(CommunicatorId(1), Group::World(WorldSize(size)), Soon());
      ASSERT_TRUE(opened.ok()) << opened.status();
      communicators_[rank] = *std::move(opened);
    });
  }
  ~World() {
    RunTransports([&](Transport&, size_t rank) {
      communicators_[rank].reset();
      transports_[rank].reset();
    });
  }

  void RunTransports(absl::FunctionRef<void(Transport&, size_t)> body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < transports_.size(); ++rank) {
      threads.emplace_back([&, rank] { body(*transports_[rank], rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void Run(absl::FunctionRef<void(Communicator&)> body) {
    RunTransports([&](Transport&, size_t rank) { body(*communicators_[rank]); });
  }
  std::unique_ptr<Communicator>& communicator(size_t rank) { return communicators_[rank]; }

 private:
  std::vector<std::unique_ptr<Transport>> transports_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
};

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

absl::Status Finish(Communicator& communicator, const absl::StatusOr<Completion>& completion,
                    absl::Time deadline = Soon()) {
  return completion.ok() ? Await(communicator, *completion, deadline) : completion.status();
}

std::vector<int32_t> Pattern(size_t count, int32_t seed) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), seed);
  return values;
}

class PointToPointTest : public testing::TestWithParam<TransportFactory> {};

#ifdef PELTON_OVER_UCX
INSTANTIATE_TEST_SUITE_P(Ucx, PointToPointTest, testing::Values(&MakeUcxTransport));
#else
INSTANTIATE_TEST_SUITE_P(Tcp, PointToPointTest, testing::Values(&MakeTcpTransport));
#endif

// Both ranks launch their send before their receive.
TEST_P(PointToPointTest, ExchangesOfAllSizesArrive) {
  World world(2, GetParam());
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    for (const size_t count : {0, 1, 2, 31, 1000, 2047, 2048, 2049, 16384, 1 << 18, 5'000'001}) {
      std::vector<int32_t> out = Pattern(count, rank);
      std::vector<int32_t> in(count, -1);
      const auto send = Send(communicator, TensorOf(out), Rank(1 - rank));
      const auto recv = Recv(communicator, TensorOf(in), Rank(1 - rank));
      EXPECT_EQ(Finish(communicator, send), absl::OkStatus());
      EXPECT_EQ(Finish(communicator, recv), absl::OkStatus());
      EXPECT_EQ(in, Pattern(count, 1 - rank)) << count;
    }
    EXPECT_FALSE(communicator.Progress());
  });
}

// Rank 1 asks for the tags in another order than rank 0 sends them; sizes below and above the
// rendezvous threshold and far more messages than the window holds.
TEST_P(PointToPointTest, TagsMatchIndependentlyAndInOrderInside) {
  World world(2, GetParam());
  world.Run([](Communicator& communicator) {
    constexpr int kTags = 5;
    constexpr int kPerTag = 50;
    const bool sends = communicator.rank() == Rank(0);
    std::vector<std::vector<int32_t>> buffers(kTags * kPerTag);
    std::vector<absl::StatusOr<Completion>> completions;
    for (int i = 0; i < kTags * kPerTag; ++i) {
      const int tag = sends ? i % kTags : kTags - 1 - i / kPerTag;
      const int turn = sends ? i / kTags : i % kPerTag;
      const size_t count = tag == 3 ? 5000 : 100;
      const int32_t seed = 1000 * tag + turn;
      buffers[static_cast<size_t>(i)] = sends ? Pattern(count, seed) : std::vector<int32_t>(count);
      const Tensor tensor = TensorOf(buffers[static_cast<size_t>(i)]);
      completions.push_back(sends ? Send(communicator, tensor, Rank(1), tag)
                                  : Recv(communicator, tensor, Rank(0), tag));
    }
    for (size_t i = 0; i < completions.size(); ++i) {
      ASSERT_EQ(Finish(communicator, completions[i]), absl::OkStatus());
      if (sends) continue;
      const int32_t tag = kTags - 1 - static_cast<int32_t>(i) / kPerTag;
      const int32_t turn = static_cast<int32_t>(i) % kPerTag;
      EXPECT_EQ(buffers[i], Pattern(buffers[i].size(), 1000 * tag + turn)) << i;
    }
  });
}

// A sender that is far ahead is held back: what waits at the receiver is bounded.
TEST_P(PointToPointTest, ASenderThatIsFarAheadIsHeldBack) {
  World world(2, GetParam());
  std::vector<int32_t> value = {7};
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return;
    HostStream stream;
    size_t launched = 0;
    while (Send(communicator, TensorOf(value), Rank(1)).ok()) ASSERT_LT(++launched, 100'000u);
    EXPECT_LE(launched, limits::kMaxOperationsInFlight + 128);
    EXPECT_GE(launched, limits::kMaxOperationsInFlight);
    value[0] = static_cast<int32_t>(launched);
  });
  const int32_t launched = value[0];
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(0)) {
      const Completion last{static_cast<uint64_t>(launched)};
      EXPECT_EQ(Await(communicator, last, Soon()), absl::OkStatus());
      std::vector<int32_t> in(1);
      EXPECT_EQ(Finish(communicator, Recv(communicator, TensorOf(in), Rank(1))), absl::OkStatus());
      return;
    }
    std::vector<int32_t> in(1);
    for (int32_t i = 0; i < launched; ++i) {
      ASSERT_EQ(Finish(communicator, Recv(communicator, TensorOf(in), Rank(0))), absl::OkStatus());
    }
    EXPECT_EQ(Finish(communicator, Send(communicator, TensorOf(in), Rank(0))), absl::OkStatus());
  });
}

TEST_P(PointToPointTest, ALongSendAndAReceiveThatDifferFailOnBothRanks) {
  World world(2, GetParam());
  world.Run([](Communicator& communicator) {
    const bool sends = communicator.rank() == Rank(0);
    std::vector<int32_t> values(sends ? 10'000 : 10'001, -1);
    const absl::Status status =
        Finish(communicator, sends ? Send(communicator, TensorOf(values), Rank(1))
                                   : Recv(communicator, TensorOf(values), Rank(0)));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(TextOf(status), HasSubstr("count is 10000 on rank 0 and 10001 on rank 1"));
    EXPECT_EQ(values, std::vector<int32_t>(values.size(), -1));
    values.assign(5, communicator.rank().value());
    const auto next = sends ? Send(communicator, TensorOf(values), Rank(1))
                            : Recv(communicator, TensorOf(values), Rank(0));
    EXPECT_EQ(Finish(communicator, next), absl::OkStatus());
    EXPECT_EQ(values, std::vector<int32_t>(5, 0));
  });
}

// A short send is done when it has left; the receiver finds the difference.
TEST_P(PointToPointTest, AShortSendAndAReceiveThatDifferFailOnTheReceiver) {
  World world(2, GetParam());
  world.Run([](Communicator& communicator) {
    const bool sends = communicator.rank() == Rank(0);
    std::vector<int32_t> values(sends ? 4 : 5);
    const absl::Status status =
        Finish(communicator, sends ? Send(communicator, TensorOf(values), Rank(1))
                                   : Recv(communicator, TensorOf(values), Rank(0)));
    if (sends) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(TextOf(status), HasSubstr("count is 4 on rank 0 and 5 on rank 1"));
  });
}

// Small socket buffers leave the last bytes with the worker, which sends them only while it is
// progressed (the variable is UCX's; the other one's long messages exceed any buffer):
// rank 0 does not come back after its last send.
TEST_P(PointToPointTest, WhatIsDoneArrivesThoughItsSenderStaysAway) {
  setenv("UCX_TCP_SNDBUF", "8k", 1);
  World world(2, GetParam());
  unsetenv("UCX_TCP_SNDBUF");
  for (const size_t count : {size_t{5'000}, size_t{100'000}, size_t{1'000'000}}) {
    world.Run([count](Communicator& communicator) {
      std::vector<int32_t> values = Pattern(count, 0);
      const auto done = communicator.rank() == Rank(0)
                            ? Send(communicator, TensorOf(values), Rank(1))
                            : Recv(communicator, TensorOf(values), Rank(0));
      const absl::Status status = Finish(communicator, done, absl::Now() + absl::Seconds(20));
      ASSERT_TRUE(status.ok()) << count << ": " << status;
    });
  }
}

TEST_P(PointToPointTest, CollectivesAreRefusedByName) {
  World world(2, GetParam());
  world.Run([](Communicator& communicator) {
    const absl::Status status = Barrier(communicator).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(TextOf(status), HasSubstr("barrier"));
  });
}

TEST_P(PointToPointTest, AnAbortReachesParkedPeersWithItsReason) {
  World world(3, GetParam());
  world.Run([](Communicator& communicator) {
    std::vector<int32_t> values(100'000);
    if (communicator.rank() == Rank(0)) {
      communicator.Park(absl::Now() + absl::Milliseconds(50));
      communicator.Abort(absl::InternalError("the disk is full"));
      EXPECT_EQ(Send(communicator, TensorOf(values), Rank(1)).status(),
                absl::InternalError("the disk is full"));
      return;
    }
    const auto recv = Recv(communicator, TensorOf(values), Rank(0));
    ASSERT_TRUE(recv.ok());
    const absl::Time begin = absl::Now();
    while (!communicator.Query(*recv).done && absl::Now() - begin < absl::Seconds(20)) {
      if (!communicator.Progress()) communicator.Park(begin + absl::Seconds(20));
    }
    EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
    EXPECT_EQ(communicator.Query(*recv).status,
              absl::InternalError("rank 0 aborted: the disk is full"));
  });
}

TEST_P(PointToPointTest, ADeadlineNamesThePeerThatIsMissing) {
  World world(3, GetParam());
  world.Run([](Communicator& communicator) {
    if (communicator.rank() != Rank(0)) return;
    std::vector<int32_t> values(3);
    const auto recv = Recv(communicator, TensorOf(values), Rank(2));
    EXPECT_THAT(communicator.Missing(), testing::ElementsAre(Rank(2)));
    const absl::Status status = Finish(communicator, recv, absl::Now() + absl::Milliseconds(100));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(TextOf(status), HasSubstr("waiting for rank(s) 2"));
  });
}

// What was sent before the end arrives, and then the peer is known to have left.
TEST_P(PointToPointTest, AClosedRanksSendsArriveAndItIsNamedAfterwards) {
  World world(2, GetParam());
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return;
    std::vector<int32_t> values = {1, 2, 3};
    EXPECT_EQ(Finish(communicator, Send(communicator, TensorOf(values), Rank(1))),
              absl::OkStatus());
    world.communicator(0).reset();
  });
  world.RunTransports([&](Transport&, size_t rank) {
    if (rank == 0) return;
    Communicator& communicator = *world.communicator(1);
    std::vector<int32_t> values(3);
    EXPECT_EQ(Finish(communicator, Recv(communicator, TensorOf(values), Rank(0))),
              absl::OkStatus());
    EXPECT_EQ(values, Pattern(3, 1));
    const absl::Status status = Finish(communicator, Recv(communicator, TensorOf(values), Rank(0)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(TextOf(status), HasSubstr("rank 0 has left"));
  });
}

#ifndef PELTON_OVER_UCX  // whose sockets live as long as a peer may want something
// Also those of the last one, after which nothing else is opened.
TEST_P(PointToPointTest, AClosedCommunicatorKeepsNoSockets) {
  World world(3, GetParam());
  const size_t before = OpenDescriptors();
  for (uint32_t turn = 0; turn < 3; ++turn) {
    // Outlive the ranks' threads: a send to a rank that has closed already would be refused.
    std::vector<std::unique_ptr<Communicator>> communicators(3);
    world.RunTransports([&](Transport& transport, size_t rank) {
      auto opened = transport.Open(CommunicatorId(10 + turn), Group::World(WorldSize(3)), Soon());
      ASSERT_TRUE(opened.ok()) << opened.status();
      communicators[rank] = *std::move(opened);
      std::vector<int32_t> values(3);
      const Rank next((communicators[rank]->rank().value() + 1) % 3);
      EXPECT_EQ(Finish(*communicators[rank], Send(*communicators[rank], TensorOf(values), next)),
                absl::OkStatus());
    });
  }
  EXPECT_EQ(OpenDescriptors(), before);
}
#endif

// A random walk of sends and receives of all sizes among four ranks; every rank plays the same
// script and takes its own part of it.
TEST_P(PointToPointTest, ARandomScriptGivesEveryMessageToItsReceive) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  World world(4, GetParam());
  world.Run([seed](Communicator& communicator) {
    std::mt19937 random(seed);
    const int32_t rank = communicator.rank().value();
    for (int batch = 0; batch < 10; ++batch) {
      std::vector<std::vector<int32_t>> buffers(100);
      std::vector<std::pair<size_t, Completion>> mine;
      std::vector<int32_t> seeds(100);
      for (size_t i = 0; i < 100; ++i) {
        const auto from = static_cast<int32_t>(random() % 4);
        const auto to = static_cast<int32_t>((static_cast<uint32_t>(from) + 1 + random() % 3) % 4);
        const auto tag = static_cast<int32_t>(random() % 3);
        const size_t count = random() % 10 == 0 ? random() % 200'000 : random() % 3000;
        seeds[i] = static_cast<int32_t>(random() % 100'000);
        if (rank != from && rank != to) continue;
        buffers[i] = rank == from ? Pattern(count, seeds[i]) : std::vector<int32_t>(count, -1);
        const auto completion = rank == from
                                    ? Send(communicator, TensorOf(buffers[i]), Rank(to), tag)
                                    : Recv(communicator, TensorOf(buffers[i]), Rank(from), tag);
        ASSERT_TRUE(completion.ok()) << completion.status();
        mine.emplace_back(i, *completion);
      }
      for (const auto& [i, completion] : mine) {
        ASSERT_EQ(Await(communicator, completion, Soon()), absl::OkStatus());
        EXPECT_EQ(buffers[i], Pattern(buffers[i].size(), seeds[i])) << "batch " << batch;
      }
    }
  });
}

}  // namespace
}  // namespace pelton::network
