// Collectives as Python calls them, with a backend of each rank.
#include "torch_bindings/csrc/python_communicator.h"

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "comm/group.h"
#include "core/base/ids.h"
#include "core/pipeline/operation_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/signal_scope.h"
#include "torch_bindings/csrc/test_backends.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kSum = 0;
constexpr int kMax = 3;
constexpr int kBitAnd = 8;

at::Tensor Of(const std::vector<float>& values) { return torch::tensor(values); }
at::Tensor Blank(int64_t count) { return torch::full({count}, -1.0F); }
bool Holds(const at::Tensor& tensor, const std::vector<float>& values) {
  return tensor.equal(torch::tensor(values));
}

// Rank r has (100 r + 0, 100 r + 1, ...).
at::Tensor Numbers(int rank, int64_t count) {
  return torch::arange(count, at::kFloat) + 100.0F * static_cast<float>(rank);
}

void Broadcast(PythonCommunicator& communicator, const at::Tensor& tensor, int root) {
  communicator.Collective(OperationKind::kBroadcast, {}, tensor, Rank(root));
}
void Barrier(PythonCommunicator& communicator) {
  communicator.Collective(OperationKind::kBarrier, {}, {});
}

using Body = std::function<void(PythonCommunicator& communicator, int rank)>;

void OnCommunicators(int world_size, const Body& body) {
  OnRanks(world_size, [&](const std::shared_ptr<Backend>& backend) {
    PythonCommunicator communicator(backend, Group::World(WorldSize(world_size)), "grid");
    body(communicator, communicator.rank());
  });
}

// Of calls that are refused before they need any other rank.
void Alone(const std::function<void(PythonCommunicator& communicator)>& body) {
  OnCommunicators(1, [&](PythonCommunicator& communicator, int) { body(communicator); });
}

TEST(PythonCommunicatorTest, ReductionsCombineWhatTheRanksGive) {
  OnCommunicators(3, [](PythonCommunicator& communicator, int rank) {
    const at::Tensor mine = Numbers(rank, 2);
    at::Tensor result = Blank(2);
    communicator.Collective(OperationKind::kAllReduce, mine, result, Rank(0), kSum);
    EXPECT_TRUE(Holds(result, {300, 303}));
    EXPECT_TRUE(mine.equal(Numbers(rank, 2)));
    communicator.Collective(OperationKind::kAllReduce, mine, mine, Rank(0), kMax);
    EXPECT_TRUE(Holds(mine, {200, 201})) << "in place";

    result = rank == 1 ? Blank(2) : at::Tensor();
    communicator.Collective(OperationKind::kReduce, Numbers(rank, 2), result, Rank(1), kSum);
    if (rank == 1) {
      EXPECT_TRUE(Holds(result, {300, 303}));
    }

    at::Tensor part = Blank(2);
    communicator.Collective(OperationKind::kReduceScatter, Numbers(rank, 6), part, Rank(0), kSum);
    const auto first = static_cast<float>(300 + 6 * rank);
    EXPECT_TRUE(Holds(part, {first, first + 3}));
  });
}

TEST(PythonCommunicatorTest, ExchangesMoveEachPartToItsPlace) {
  OnCommunicators(3, [](PythonCommunicator& communicator, int rank) {
    const auto number = static_cast<float>(rank);
    at::Tensor gathered = Blank(6);
    communicator.Collective(OperationKind::kAllGather, Numbers(rank, 2), gathered);
    EXPECT_TRUE(Holds(gathered, {0, 1, 100, 101, 200, 201}));

    at::Tensor tensor = Numbers(rank, 2);
    Broadcast(communicator, tensor, 2);
    EXPECT_TRUE(Holds(tensor, {200, 201}));

    gathered = rank == 1 ? Blank(6) : at::Tensor();
    communicator.Collective(OperationKind::kGather, Numbers(rank, 2), gathered, Rank(1));
    if (rank == 1) {
      EXPECT_TRUE(Holds(gathered, {0, 1, 100, 101, 200, 201}));
    }

    at::Tensor part = Blank(2);
    communicator.Collective(OperationKind::kScatter, rank == 2 ? Numbers(2, 6) : at::Tensor(), part,
                            Rank(2));
    EXPECT_TRUE(Holds(part, {200 + 2 * number, 201 + 2 * number}));

    at::Tensor parts = Blank(3);
    communicator.Collective(OperationKind::kAllToAll, Numbers(rank, 3), parts);
    EXPECT_TRUE(Holds(parts, {number, 100 + number, 200 + number}));
  });
}

// Rank 0 sends 1 element to itself and 2 to rank 1, which sends 1 to rank 0 and none to itself.
TEST(PythonCommunicatorTest, PartsOfAnyLengthLieWhereTheirOffsetsSay) {
  OnCommunicators(2, [](PythonCommunicator& communicator, int rank) {
    at::Tensor received = Blank(4);
    if (rank == 0) {
      communicator.AllToAllV(Numbers(0, 5), {1, 2}, {4, 1}, received, {1, 1}, {3, 0});
      EXPECT_TRUE(Holds(received, {102, -1, -1, 4}));
    } else {
      communicator.AllToAllV(Numbers(1, 5), {1, 0}, {2, 0}, received, {2, 0}, {1, 0});
      EXPECT_TRUE(Holds(received, {-1, 1, 2, -1}));
    }
  });
}

TEST(PythonCommunicatorTest, AMessageGoesToItsRankUnderItsTag) {
  OnCommunicators(3, [](PythonCommunicator& communicator, int rank) {
    if (rank == 2) communicator.Send(Of({7, 8}), 1, 5);
    if (rank == 0) communicator.Send(Of({3, 4}), 1, 9);
    if (rank == 1) {
      at::Tensor first = Blank(2);
      at::Tensor second = Blank(2);
      communicator.Recv(first, 2, 5);
      communicator.Recv(second, 0, 9);
      EXPECT_TRUE(Holds(first, {7, 8}));
      EXPECT_TRUE(Holds(second, {3, 4}));
    }
  });
}

TEST(PythonCommunicatorTest, RanksAreThoseOfTheGroupInItsOrder) {
  OnRanks(3, [](const std::shared_ptr<Backend>& backend) {
    if (backend->rank() == Rank(1)) return;
    const Group group{.members = {Rank(2), Rank(0)}, .generation = Generation(1)};
    PythonCommunicator communicator(backend, group, "two of them");
    const int rank = backend->rank() == Rank(2) ? 0 : 1;
    EXPECT_EQ(communicator.rank(), rank);
    EXPECT_EQ(communicator.world_size(), 2);
    at::Tensor gathered = Blank(2);
    communicator.Collective(OperationKind::kAllGather,
                            Of({static_cast<float>(backend->rank().value())}), gathered);
    EXPECT_TRUE(Holds(gathered, {2, 0}));
    at::Tensor tensor = Of({static_cast<float>(rank)});
    Broadcast(communicator, tensor, 1);
    EXPECT_TRUE(Holds(tensor, {1}));
  });
}

TEST(PythonCommunicatorTest, ARefusedTensorIsNamedWithItsCallAndGroup) {
  Alone([](PythonCommunicator& communicator) {
    const at::Tensor good = Blank(4);
    const at::Tensor crossed = torch::zeros({2, 2}).t();
    EXPECT_THAT(
        ErrorOf([&] {
          communicator.Collective(OperationKind::kAllReduce, crossed, good, Rank(0), kSum);
        }),
        StartsWith(
            "INVALID_ARGUMENT: allreduce of group 'grid': send_tensor: is not contiguous; "));
    EXPECT_THAT(
        ErrorOf([&] { communicator.Collective(OperationKind::kAllGather, good, crossed); }),
        StartsWith(
            "INVALID_ARGUMENT: allgather of group 'grid': recv_tensor: is not contiguous; "));
    EXPECT_THAT(
        ErrorOf([&] { Broadcast(communicator, crossed, 0); }),
        StartsWith("INVALID_ARGUMENT: broadcast of group 'grid': tensor: is not contiguous; "));
    EXPECT_EQ(
        ErrorOf([&] { communicator.Collective(OperationKind::kReduce, good, good, Rank(0), 5); }),
        "INVALID_ARGUMENT: reduce of group 'grid': op: 5 is no reduction");
    EXPECT_EQ(ErrorOf([&] {
                communicator.Collective(OperationKind::kAllReduce, good, good, Rank(0), kSum);
              }),
              "none");
  });
}

TEST(PythonCommunicatorTest, TensorsOfSeveralDevicesOrOfAnUnknownOneAreRefused) {
  Alone([](PythonCommunicator& communicator) {
    const at::Tensor here = Blank(2);
    const at::Tensor nowhere = torch::empty({2}, at::kMeta);
    EXPECT_THAT(ErrorOf([&] {
                  communicator.Collective(OperationKind::kAllReduce, here, nowhere, Rank(0), kSum);
                }),
                HasSubstr("its tensors are on cpu and meta; one is needed"));
    EXPECT_THAT(ErrorOf([&] {
                  communicator.Collective(OperationKind::kAllReduce, nowhere, nowhere, Rank(0),
                                          kSum);
                }),
                HasSubstr("the tensor is on meta; tensors of the CPU and of GPUs are served"));
  });
}

TEST(PythonCommunicatorTest, CountsAndOffsetsThatMakeNoPartsAreRefusedBySide) {
  Alone([](PythonCommunicator& communicator) {
    const at::Tensor tensor = Blank(4);
    const auto error_of = [&](const std::vector<int64_t>& send_counts,
                              const std::vector<int64_t>& recv_displs) {
      return ErrorOf(
          [&] { communicator.AllToAllV(tensor, send_counts, {0}, Blank(4), {1}, recv_displs); });
    };
    EXPECT_THAT(error_of({1, 1}, {0}),
                HasSubstr("alltoall_v of group 'grid': send_counts has 2 entries, send_displs 1"));
    EXPECT_THAT(error_of({-2}, {0}),
                HasSubstr("send_counts[0] is -2, send_displs[0] 0: must not be negative"));
    EXPECT_THAT(error_of({1}, {-3}), HasSubstr("recv_counts[0] is 1, recv_displs[0] -3"));
    EXPECT_EQ(error_of({1}, {3}), "none");
  });
}

TEST(PythonCommunicatorTest, ReductionsWithoutAMeaningForATypeAreKnownBeforehand) {
  EXPECT_EQ(ErrorOf([] { PythonCommunicator::CheckReducible(at::kFloat, kSum); }), "none");
  EXPECT_EQ(ErrorOf([] { PythonCommunicator::CheckReducible(at::kInt, kBitAnd); }), "none");
  EXPECT_THAT(ErrorOf([] { PythonCommunicator::CheckReducible(at::kFloat, kBitAnd); }),
              HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(ErrorOf([] { PythonCommunicator::CheckReducible(at::kInt, 11); }),
              HasSubstr("op: 11 is no reduction"));
  EXPECT_THAT(ErrorOf([] { PythonCommunicator::CheckReducible(at::kInt, 4); }),
              HasSubstr("op: 4 is no reduction"));
}

TEST(PythonCommunicatorTest, AnAbortEndsWhatAnotherRankWaitsForWithItsReason) {
  OnCommunicators(2, [](PythonCommunicator& communicator, int rank) {
    if (rank == 1) {
      EXPECT_FALSE(communicator.aborted());
      communicator.Abort();
      EXPECT_TRUE(communicator.aborted());
    }
    EXPECT_THAT(ErrorOf([&] { Barrier(communicator); }),
                AllOf(HasSubstr("barrier of group 'grid'"), HasSubstr("rank 1 called abort()")));
    EXPECT_EQ(communicator.aborted(), rank == 1);
  });
}

TEST(PythonCommunicatorTest, AfterAnAbortNoCommunicatorOfAnotherDeviceIsOpened) {
  Alone([](PythonCommunicator& communicator) {
    communicator.Abort();
    const at::Tensor elsewhere = torch::empty({2}, at::kMeta);
    EXPECT_EQ(ErrorOf([&] {
                communicator.Collective(OperationKind::kAllReduce, elsewhere, elsewhere, Rank(0),
                                        kSum);
              }),
              "ABORTED: allreduce of group 'grid': rank 0 called abort()");
  });
}

TEST(PythonCommunicatorTest, OnceClosedEveryCallIsRefused) {
  Alone([](PythonCommunicator& communicator) {
    communicator.Close();
    EXPECT_EQ(ErrorOf([&] { Barrier(communicator); }),
              "FAILED_PRECONDITION: barrier of group 'grid': rank 0: the communicator's group was "
              "destroyed");
    EXPECT_EQ(ErrorOf([&] { communicator.Close(); }), "none");
  });
}

TEST(PythonCommunicatorTest, ARankThatDoesNotComeIsNamedAfterTheTimeout) {
  absl::Notification timed_out;
  OnRanks(
      2,
      [&](const std::shared_ptr<Backend>& backend) {
        PythonCommunicator communicator(backend, Group::World(WorldSize(2)), "");
        if (communicator.rank() == 0) {
          EXPECT_THAT(ErrorOf([&] { Barrier(communicator); }),
                      AllOf(HasSubstr("DEADLINE_EXCEEDED: barrier: "), HasSubstr("rank(s) 1")));
          timed_out.Notify();
        } else {
          EXPECT_TRUE(timed_out.WaitForNotificationWithTimeout(absl::Seconds(20)));
        }
      },
      absl::Milliseconds(200));
}

TEST(PythonCommunicatorTest, ASignalHandlerNeitherCallsNorCloses) {
  Alone([](PythonCommunicator& communicator) {
    {
      const SignalScope handler;
      EXPECT_THAT(ErrorOf([&] { Barrier(communicator); }), HasSubstr("called by a signal handler"));
      EXPECT_THAT(ErrorOf([&] { communicator.Close(); }), HasSubstr("called by a signal handler"));
    }
    EXPECT_EQ(ErrorOf([&] { Barrier(communicator); }), "none") << "it is still open";
  });
}

}  // namespace
}  // namespace pelton::torch_bindings
