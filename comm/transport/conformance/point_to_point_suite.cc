// Conformance of sends and receives: matching by tag and order, and independence of collectives.
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/conformance/test_world.h"
#include "core/base/limits.h"

namespace pelton::conformance {
namespace {

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

void ExpectDone(Communicator& communicator, const absl::StatusOr<Completion>& completion) {
  ASSERT_TRUE(completion.ok()) << completion.status();
  EXPECT_EQ(Await(communicator, *completion, FarDeadline()), absl::OkStatus());
}

// Both ranks launch their send before their receive.
TEST_P(TransportConformanceTest, AnExchangeDoesNotDeadlock) {
  for (uint64_t count : {uint64_t{1}, uint64_t{1} << 18}) {
    TestWorld world(GetParam(), 2);
    world.Run([&](Communicator& communicator) {
      std::vector<int32_t> out(count, communicator.rank().value());
      std::vector<int32_t> in(count, -1);
      const Rank peer(1 - communicator.rank().value());
      const auto send = Send(communicator, TensorOf(out), peer);
      const auto recv = Recv(communicator, TensorOf(in), peer);
      ExpectDone(communicator, send);
      ExpectDone(communicator, recv);
      EXPECT_EQ(in, std::vector<int32_t>(count, peer.value()));
    });
  }
}

TEST_P(TransportConformanceTest, ATokenGoesAroundTheRing) {
  TestWorld world(GetParam(), 4);
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    std::vector<int32_t> token = {100};
    if (rank > 0) ExpectDone(communicator, Recv(communicator, TensorOf(token), Rank(rank - 1)));
    token[0] += rank;
    ExpectDone(communicator, Send(communicator, TensorOf(token), Rank((rank + 1) % 4)));
    if (rank > 0) return;
    ExpectDone(communicator, Recv(communicator, TensorOf(token), Rank(3)));
    EXPECT_EQ(token[0], 100 + 1 + 2 + 3);
  });
}

// The receiver asks for the tags in the opposite order.
TEST_P(TransportConformanceTest, TagsMatchIndependently) {
  TestWorld world(GetParam(), 2);
  world.Run([&](Communicator& communicator) {
    std::vector<int32_t> first = {1};
    std::vector<int32_t> second = {2};
    std::vector<absl::StatusOr<Completion>> completions;
    if (!world.promises().has_tags) {
      const Rank peer(1 - communicator.rank().value());
      const absl::Status status = Send(communicator, TensorOf(first), peer, 10).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_NE(status.message().find("tag: 10"), absl::string_view::npos) << status;
      return;
    }
    if (communicator.rank() == Rank(0)) {
      completions.push_back(Send(communicator, TensorOf(first), Rank(1), 10));
      completions.push_back(Send(communicator, TensorOf(second), Rank(1), 20));
    } else {
      completions.push_back(Recv(communicator, TensorOf(second), Rank(0), 20));
      completions.push_back(Recv(communicator, TensorOf(first), Rank(0), 10));
    }
    for (const auto& completion : completions) ExpectDone(communicator, completion);
    EXPECT_EQ(first[0], 1);
    EXPECT_EQ(second[0], 2);
  });
}

// Rank 0 does not know who sends.
TEST_P(TransportConformanceTest, ASenderIsFoundByItsTag) {
  TestWorld world(GetParam(), 3);
  if (!world.promises().has_tags) return;
  world.Run([](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    std::vector<int32_t> value = {rank};
    if (rank > 0) {
      return ExpectDone(communicator, Send(communicator, TensorOf(value), Rank(0), 5));
    }
    std::set<int32_t> sources;
    for (int i = 0; i < 2; ++i) {
      absl::StatusOr<std::optional<Rank>> sender;
      auto is_found = [&] {
        sender = communicator.FindSender(5);
        return !sender.ok() || sender->has_value();
      };
      ASSERT_TRUE(DriveUntil(communicator, is_found, FarDeadline()));
      ASSERT_TRUE(sender.ok()) << sender.status();
      ExpectDone(communicator, Recv(communicator, TensorOf(value), **sender, 5));
      EXPECT_EQ(value[0], (*sender)->value());
      sources.insert(value[0]);
    }
    EXPECT_EQ(sources, (std::set<int32_t>{1, 2}));
    const absl::StatusOr<std::optional<Rank>> none = communicator.FindSender(6);
    EXPECT_TRUE(none.ok()) << none.status();
    EXPECT_FALSE(none->has_value());
  });
}

TEST_P(TransportConformanceTest, OneTagMatchesInLaunchOrder) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    const bool sends = communicator.rank() == Rank(0);
    std::vector<int32_t> values(100, -1);
    if (sends) std::iota(values.begin(), values.end(), 0);
    std::vector<absl::StatusOr<Completion>> completions;
    for (int32_t& value : values) {
      const Tensor tensor{&value, 1, DType::kInt32};
      completions.push_back(sends ? Send(communicator, tensor, Rank(1))
                                  : Recv(communicator, tensor, Rank(0)));
    }
    for (const auto& completion : completions) ExpectDone(communicator, completion);
    for (int32_t i = 0; i < 100; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], i);
  });
}

// Rank 0 waits in a collective that rank 1 joins only after a message from rank 0.
TEST_P(TransportConformanceTest, PointToPointDoesNotWaitForCollectives) {
  TestWorld world(GetParam(), 2);
  world.Run([](Communicator& communicator) {
    std::vector<int32_t> message = {communicator.rank() == Rank(0) ? 42 : 0};
    if (communicator.rank() == Rank(0)) {
      const auto barrier = Barrier(communicator);
      ExpectDone(communicator, Send(communicator, TensorOf(message), Rank(1)));
      ExpectDone(communicator, barrier);
    } else {
      ExpectDone(communicator, Recv(communicator, TensorOf(message), Rank(0)));
      EXPECT_EQ(message[0], 42);
      ExpectDone(communicator, Barrier(communicator));
    }
  });
}

// `count` short messages from rank 0 to rank 1, each awaited before the next.
void PassOn(Communicator& communicator, size_t count) {
  for (size_t i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    std::vector<int32_t> value = {static_cast<int32_t>(i)};
    const bool sends = communicator.rank() == Rank(0);
    ExpectDone(communicator, sends ? Send(communicator, TensorOf(value), Rank(1))
                                   : Recv(communicator, TensorOf(value), Rank(0)));
    EXPECT_EQ(value[0], static_cast<int32_t>(i));
  }
}

// A receive without its send, and a send without its receive, while many more operations than may
// be in flight come and go.
TEST_P(TransportConformanceTest, AMessageThatTakesLongStopsNothing) {
  TestWorld world(GetParam(), 2);
  world.Run([&](Communicator& communicator) {
    constexpr size_t kMany = limits::kMaxOperationsInFlight + 50;
    const bool is_first = communicator.rank() == Rank(0);
    std::vector<int32_t> early = {is_first ? 0 : 77};
    std::vector<int32_t> late = {is_first ? 42 : 0};
    // Without tags each direction between two ranks is one queue.
    const bool has_tags = world.promises().has_tags;
    const int32_t tag = has_tags ? 9 : 0;
    // Rank 1's send is not received, and rank 1's receive not sent, before all else is done.
    absl::StatusOr<Completion> sent;
    absl::StatusOr<Completion> received;
    if (!is_first) {
      if (has_tags) sent = Send(communicator, TensorOf(early), Rank(0), tag);
      received = Recv(communicator, TensorOf(late), Rank(0), tag);
    }
    for (size_t i = 0; i < kMany && !testing::Test::HasFailure(); ++i) {
      ExpectDone(communicator, Barrier(communicator));
    }
    if (has_tags) PassOn(communicator, kMany);
    if (is_first) {
      ExpectDone(communicator, Send(communicator, TensorOf(late), Rank(1), tag));
      if (has_tags) ExpectDone(communicator, Recv(communicator, TensorOf(early), Rank(1), tag));
      EXPECT_EQ(early[0], has_tags ? 77 : 0);
      return;
    }
    ExpectDone(communicator, received);
    if (has_tags) ExpectDone(communicator, sent);
    EXPECT_EQ(late[0], 42);
  });
}

TEST_P(TransportConformanceTest, ASendAndAReceiveThatDifferFailOnBothRanks) {
  TestWorld world(GetParam(), 2);
  const bool sender_knows = world.promises().short_sends_learn_of_a_difference;
  world.Run([sender_knows](Communicator& communicator) {
    std::vector<int32_t> values(5);
    const bool sends = communicator.rank() == Rank(0);
    values.resize(sends ? 4 : 5);
    const auto completion = sends ? Send(communicator, TensorOf(values), Rank(1))
                                  : Recv(communicator, TensorOf(values), Rank(0));
    ASSERT_TRUE(completion.ok()) << completion.status();
    const absl::Status status = Await(communicator, *completion, FarDeadline());
    if (sends && !sender_knows && status.ok()) return;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("count"), absl::string_view::npos) << status;
  });
  if (!world.promises().survives_disagreement) return;
  ExchangeSpec next;
  next.kind = OperationKind::kSend;
  EXPECT_TRUE(world.RunExchanges({next}));
}

}  // namespace
}  // namespace pelton::conformance
