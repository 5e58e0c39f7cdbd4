// Several communicators of the same ranks at once, each with a thread of its own: they may share
// connections, and each goes its own way all the same.
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/network/test_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#ifdef PELTON_OVER_UCX
#include "comm/transport/ucx/ucx_transport.h"
#else
#include "comm/transport/tcp/tcp_transport.h"
#endif

namespace pelton::network {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

#ifdef PELTON_OVER_UCX
constexpr TransportFactory kMake = &MakeUcxTransport;
#else
constexpr TransportFactory kMake = &MakeTcpTransport;
#endif

constexpr size_t kLongBytes = size_t{32} << 20;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// Threads: one. Owns: two ranks, and communicators of both.
class BesideTest : public testing::Test {
 protected:
  using Communicators = std::vector<std::unique_ptr<Communicator>>;

  void Open(uint32_t id) {
    RunRanks([&](int rank) {
      auto opened = ranks_[rank]->Open(CommunicatorId(id), Group::World(WorldSize(2)), Soon());
      ASSERT_TRUE(opened.ok()) << opened.status();
      opened_[rank].push_back(*std::move(opened));
    });
  }
  ~BesideTest() override { Close(); }
  void Close() {
    RunRanks([&](int rank) {
      opened_[rank].clear();
      ranks_[rank].reset();
    });
  }
  Communicator& At(int rank, size_t number) { return *opened_[rank][number]; }

  void RunRanks(absl::FunctionRef<void(int)> body) {
    std::thread other([&] { body(1); });
    body(0);
    other.join();
  }
  // A thread for each rank of each communicator.
  void RunAll(absl::FunctionRef<void(int, size_t)> body) {
    std::vector<std::thread> threads;
    for (int rank : {0, 1}) {
      for (size_t number = 0; number < opened_[rank].size(); ++number) {
        threads.emplace_back([&, rank, number] { body(rank, number); });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<Transport>> ranks_ = MakeRanks(WorldSize(2), kMake);
  Communicators opened_[2];
};

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

std::vector<int32_t> Pattern(size_t count, int32_t seed) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), seed);
  return values;
}

absl::Status Finish(Communicator& communicator, const absl::StatusOr<Completion>& completion) {
  return completion.ok() ? Await(communicator, *completion, Soon()) : completion.status();
}

// Sends to the other rank what `seed` says, and takes what it sends; what is wrong, or "".
std::string Swap(Communicator& communicator, size_t count, int32_t seed) {
  const Rank other(1 - communicator.rank().value());
  std::vector<int32_t> out = Pattern(count, seed + communicator.rank().value());
  std::vector<int32_t> in(count, -1);
  const auto recv = Recv(communicator, TensorOf(in), other);
  const auto send = Send(communicator, TensorOf(out), other);
  const absl::Status received = Finish(communicator, recv);
  const absl::Status sent = Finish(communicator, send);
  if (!received.ok()) return received.ToString();
  if (!sent.ok()) return sent.ToString();
  return in == Pattern(count, seed + other.value()) ? "" : "another communicator's values";
}

TEST_F(BesideTest, EachHasItsOwnMessages) {
  for (uint32_t id = 1; id <= 4; ++id) Open(id);
  RunAll([this](int rank, size_t number) {
    for (int32_t turn = 0; turn < 60; ++turn) {
      const size_t count = turn % 3 == 0 ? 300'000 : 10 + static_cast<size_t>(turn);
      const auto seed = static_cast<int32_t>(1000 * number) + turn;
      EXPECT_EQ(Swap(At(rank, number), count, seed), "") << number;
    }
  });
}

// An abort in the middle of long messages: their memory is its owner's again (OWN-1), and what the
// others have under way on the same wire comes whole.
TEST_F(BesideTest, AnAbortLeavesTheOthersAlone) {
  Open(1);
  for (uint32_t id = 2; id <= 11; ++id) {
    Open(id);
    std::atomic<bool> is_over{false};
    RunAll([&](int rank, size_t number) {
      Communicator& communicator = At(rank, number);
      if (number == 0) {  // until rank 0 says that it is over
        for (int32_t turn = 0; turn >= 0; ++turn) {
          std::vector<int32_t> goes_on{rank == 0 && is_over ? 0 : 1};
          const auto told = rank == 0 ? Send(communicator, TensorOf(goes_on), Rank(1))
                                      : Recv(communicator, TensorOf(goes_on), Rank(0));
          ASSERT_EQ(Finish(communicator, told), absl::OkStatus());
          if (goes_on[0] == 0) return;
          ASSERT_EQ(Swap(communicator, 400'000, turn), "");
        }
      }
      const Rank other(1 - rank);
      std::vector<int32_t> out(kLongBytes / sizeof(int32_t), rank);
      std::vector<int32_t> in(out.size(), -1);
      const auto recv = Recv(communicator, TensorOf(in), other);
      const auto send = Send(communicator, TensorOf(out), other);
      if (rank == 0) {
        const absl::Time until = absl::Now() + absl::Milliseconds(id);
        while (absl::Now() < until) communicator.Progress();
        communicator.Abort(absl::DataLossError("the disk is full"));
        EXPECT_TRUE(recv.ok() && communicator.Query(*recv).done);
      }
      const absl::Status received = Finish(communicator, recv);
      Finish(communicator, send).IgnoreError();  // all of it may have left
      EXPECT_THAT(received.ok() ? "the disk is full" : received.ToString(),
                  HasSubstr("the disk is full"));
      std::memset(in.data(), 7, kLongBytes);
      std::memset(out.data(), 8, kLongBytes);
      // Meanwhile the other communicator's threads read what is still on its way.
      const std::string untouched(kLongBytes, 7);
      for (int look = 0; look < 20; ++look) {
        ASSERT_EQ(std::memcmp(in.data(), untouched.data(), kLongBytes), 0);
      }
      if (rank == 0) is_over = true;
    });
    RunRanks([this](int rank) { opened_[rank].pop_back(); });
  }
}

// Threads: one. Owns: what BesideTest does, with a long message from rank 0 to 1 under way in
// communicator 0, of which the wire is full while rank 1 is elsewhere.
class BusyWireTest : public BesideTest {
 protected:
  ~BusyWireTest() override { Close(); }  // before the memory of what is under way goes
  void FillWire() {
    Open(1);
    Open(2);
    const auto receives = Recv(At(1, 0), TensorOf(in), Rank(0));
    const auto sends = Send(At(0, 0), TensorOf(out), Rank(1));
    ASSERT_TRUE(receives.ok() && sends.ok());
    recv = *receives;
    while (in[0] != 7) {
      At(0, 0).Progress();
      At(1, 0).Progress();
    }
    for (int look = 0; look < 3000; ++look) At(0, 0).Progress();
  }

  std::vector<int32_t> out = std::vector<int32_t>(kLongBytes / sizeof(int32_t), 7);
  std::vector<int32_t> in = std::vector<int32_t>(kLongBytes / sizeof(int32_t), -1);
  Completion recv;
};

// Rank 0 does nothing more here after its abort.
TEST_F(BusyWireTest, AnAbortIsHeardByAPeerThatWasElsewhere) {
  FillWire();
  At(0, 0).Abort(absl::DataLossError("the disk is full"));
  const absl::Status heard = Await(At(1, 0), recv, Soon());
  EXPECT_THAT(heard.ToString(), AnyOf(HasSubstr("the disk is full"), HasSubstr("rank 0 is lost")));
}

TEST_F(BusyWireTest, AGoodbyeIsHeardByAPeerThatWasElsewhere) {
  FillWire();
  opened_[0].pop_back();
  std::vector<int32_t> word(1);
  const auto never = Recv(At(1, 1), TensorOf(word), Rank(0));
  EXPECT_THAT(Finish(At(1, 1), never).ToString(),
              AnyOf(HasSubstr("rank 0 has left"), HasSubstr("rank 0 is lost")));
}

// What a rank that stands still has not taken is no matter of what others open.
TEST_F(BusyWireTest, AnAbortThatAPeerDoesNotTakeKeepsNobodyFromOpening) {
  std::vector<std::unique_ptr<Transport>> ranks = MakeRanks(WorldSize(3), kMake);
  const auto open = [&](uint32_t id, const std::vector<int32_t>& members) {
    const Group group = Group::Of(members);
    std::vector<std::unique_ptr<Communicator>> opened(members.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.emplace_back([&, i] {
        auto made = ranks[static_cast<size_t>(members[i])]->Open(CommunicatorId(id), group, Soon());
        EXPECT_TRUE(made.ok()) << made.status();
        if (made.ok()) opened[i] = *std::move(made);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return opened;
  };
  auto busy = open(1, {0, 2});
  ASSERT_TRUE(Recv(*busy[1], TensorOf(in), Rank(0)).ok());
  ASSERT_TRUE(Send(*busy[0], TensorOf(out), Rank(1)).ok());
  while (in[0] != 7) {
    busy[0]->Progress();
    busy[1]->Progress();
  }
  for (int look = 0; look < 3000; ++look) busy[0]->Progress();
  busy[0]->Abort(absl::DeadlineExceededError("rank 2 stands still"));
  const absl::Time began = absl::Now();
  auto others = open(2, {0, 1});
  EXPECT_LT(absl::Now() - began, absl::Seconds(20));
  std::vector<std::thread> threads;
  threads.emplace_back([&] { busy[0].reset(), others[0].reset(), ranks[0].reset(); });
  threads.emplace_back([&] { others[1].reset(), ranks[1].reset(); });
  threads.emplace_back([&] { busy[1].reset(), ranks[2].reset(); });
  for (std::thread& thread : threads) thread.join();
}

// A thread that sleeps for one communicator is woken, though another one's thread has read what
// came for it.
TEST_F(BesideTest, AParkedThreadIsWokenWhoeverReads) {
  Open(1);
  Open(2);
  std::atomic<bool> is_over{false};
  std::thread reader([&] {  // rank 1's other communicator, which nobody sends to
    while (!is_over) At(1, 1).Progress();
  });
  RunRanks([&](int rank) {
    for (int32_t turn = 0; turn < 300; ++turn) {
      std::vector<int32_t> value{turn};
      Communicator& communicator = At(rank, 0);
      const Rank other(1 - rank);
      const auto there = rank == 0 ? Send(communicator, TensorOf(value), other)
                                   : Recv(communicator, TensorOf(value), other);
      ASSERT_TRUE(there.ok()) << there.status();
      const absl::Time began = absl::Now();
      while (!communicator.Query(*there).done) communicator.Park(began + absl::Seconds(60));
      EXPECT_LT(absl::Now() - began, absl::Seconds(30)) << turn;
      const auto back = rank == 1 ? Send(communicator, TensorOf(value), other)
                                  : Recv(communicator, TensorOf(value), other);
      ASSERT_EQ(Finish(communicator, back), absl::OkStatus());
      EXPECT_EQ(value[0], turn);
    }
  });
  is_over = true;
  reader.join();
}

}  // namespace
}  // namespace pelton::network
