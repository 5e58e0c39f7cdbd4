// The composition in virtual time: results on any layout, bytes, errors. The conformance suite
// (hierarchical_conformance_test.cc) covers the contract in real time.
#include "comm/hierarchy/hierarchical_communicator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/collectives.h"
#include "comm/hierarchy/roll_call.h"
#include "comm/hierarchy/test_hosts.h"
#include "comm/reduction/half.h"
#include "core/base/sanitizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::hierarchy {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSubsetOf;
using ::testing::Not;

using Values = std::vector<std::vector<int32_t>>;  // by rank

// Distinct for every rank and place, and small enough to be added.
Values Numbers(int32_t ranks, uint64_t count) {
  Values values(ranks, std::vector<int32_t>(count));
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (uint64_t i = 0; i < count; ++i) {
      values[rank][i] = static_cast<int32_t>((rank + 1) * 100003 + i * 7);
    }
  }
  return values;
}

Tensor TensorOf(std::vector<int32_t>& values) {
  return {values.data(), values.size(), DType::kInt32};
}

std::vector<int32_t> SumOf(const Values& values) {
  std::vector<int32_t> sum(values[0].size());
  for (const auto& of_rank : values) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank[i];
  }
  return sum;
}

std::vector<int32_t> Concatenated(const Values& values) {
  std::vector<int32_t> all;
  for (const auto& of_rank : values) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return all;
}

std::vector<int32_t> Chunk(const std::vector<int32_t>& values, int32_t index, int32_t of) {
  const auto count = static_cast<ptrdiff_t>(values.size()) / of;
  return {values.begin() + index * count, values.begin() + (index + 1) * count};
}

void ExpectOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
}

// Runs every kind once on these hosts and checks every rank's result and source.
// Threads: the test's. Owns: the hosts.
class EveryKind {
 public:
  EveryKind(const std::vector<int32_t>& host_of, uint64_t count, bool in_place, uint64_t seed)
      : hosts_(host_of, seed), n_(hosts_.size()), count_(count), in_place_(in_place) {}

  void Run() {
    AllReduceTest();
    for (int32_t root = 0; root < n_; ++root) ReduceAndBroadcast(Rank(root));
    ReduceScatterTest();
    AllGatherTest();
    PairsTest();
  }

 private:
  void AllReduceTest() {
    Values source = Numbers(n_, count_);
    Values target(n_, std::vector<int32_t>(count_));
    const std::vector<int32_t> sum = SumOf(source);
    const Values before = source;
    ExpectOk(hosts_.Run([&](Communicator& communicator) {
      const int32_t rank = communicator.rank().value();
      Tensor result = TensorOf(in_place_ ? source[rank] : target[rank]);
      return AllReduce(communicator, TensorOf(source[rank]), result, ReduceOp::kSum);
    }));
    EXPECT_THAT(in_place_ ? source : target, Each(sum));
    if (!in_place_) {
      EXPECT_EQ(source, before);
    }
  }

  void ReduceAndBroadcast(Rank root) {
    Values source = Numbers(n_, count_);
    const std::vector<int32_t> sum = SumOf(source);
    const Values before = source;
    std::vector<int32_t> result(count_);
    ExpectOk(hosts_.Run([&](Communicator& communicator) {
      Tensor mine = TensorOf(source[communicator.rank().value()]);
      const bool takes = communicator.rank() == root && !in_place_;
      return Reduce(communicator, mine, takes ? TensorOf(result) : mine, ReduceOp::kSum, root);
    }));
    EXPECT_EQ(in_place_ ? source[root.value()] : result, sum);
    for (int32_t rank = 0; rank < n_; ++rank) {
      if (rank == root.value()) continue;
      EXPECT_EQ(source[rank], before[rank]);
    }
    ExpectOk(hosts_.Run([&](Communicator& communicator) {
      return Broadcast(communicator, TensorOf(source[communicator.rank().value()]), root);
    }));
    EXPECT_THAT(source, Each(in_place_ ? sum : before[root.value()]));
  }

  void ReduceScatterTest() {
    Values source = Numbers(n_, count_ * n_);
    const std::vector<int32_t> sum = SumOf(source);
    Values target(n_, std::vector<int32_t>(count_));
    ExpectOk(hosts_.Run([&](Communicator& communicator) {
      const int32_t rank = communicator.rank().value();
      Tensor own{source[rank].data() + rank * count_, count_, DType::kInt32};
      Tensor result = in_place_ ? own : TensorOf(target[rank]);
      return ReduceScatter(communicator, TensorOf(source[rank]), result, ReduceOp::kSum);
    }));
    for (int32_t rank = 0; rank < n_; ++rank) {
      EXPECT_EQ(in_place_ ? Chunk(source[rank], rank, n_) : target[rank], Chunk(sum, rank, n_));
    }
  }

  void AllGatherTest() {
    Values source = Numbers(n_, count_);
    const std::vector<int32_t> all = Concatenated(source);
    Values target(n_, std::vector<int32_t>(count_ * n_));
    ExpectOk(hosts_.Run([&](Communicator& communicator) {
      const int32_t rank = communicator.rank().value();
      int32_t* own = target[rank].data() + rank * count_;
      if (in_place_) std::copy(source[rank].begin(), source[rank].end(), own);
      Tensor mine{in_place_ ? own : source[rank].data(), count_, DType::kInt32};
      return AllGather(communicator, mine, TensorOf(target[rank]));
    }));
    EXPECT_THAT(target, Each(all));
  }

  // Every rank sends to the next one, across hosts or inside.
  void PairsTest() {
    Values source = Numbers(n_, count_);
    Values target(n_, std::vector<int32_t>(count_));
    ExpectOk(hosts_.Run([&](Communicator& communicator) {
      const int32_t rank = communicator.rank().value();
      (void)Send(communicator, TensorOf(source[rank]), Rank((rank + 1) % n_), 3);
      return Recv(communicator, TensorOf(target[rank]), Rank((rank + n_ - 1) % n_), 3);
    }));
    for (int32_t rank = 0; rank < n_; ++rank) EXPECT_EQ(target[(rank + 1) % n_], source[rank]);
  }

  TestHosts hosts_;
  const int32_t n_;
  const uint64_t count_;
  const bool in_place_;
};

// From one to nine ranks on each of two to four hosts, in any order.
TEST(HierarchicalCommunicatorTest, EveryKindIsRightOnAnyLayout) {
  for (uint64_t seed = 1; seed <= (kSanitized ? 12 : 60); ++seed) {
    std::mt19937_64 random(seed);
    const auto hosts = static_cast<int32_t>(2 + random() % 3);
    std::vector<int32_t> host_of;
    for (int32_t host = 0; host < hosts; ++host) {
      host_of.insert(host_of.end(), 1 + random() % 4, host);
    }
    if (static_cast<int32_t>(host_of.size()) == hosts) host_of.push_back(0);
    std::shuffle(host_of.begin(), host_of.end(), random);
    const uint64_t count = random() % 4 == 0 ? random() % 5 : random() % 3000;
    SCOPED_TRACE(
        absl::StrCat("seed ", seed, ", hosts ", absl::StrJoin(host_of, " "), ", count ", count));
    EveryKind(host_of, count, /*in_place=*/random() % 2 == 0, seed).Run();
    if (testing::Test::HasFailure()) return;
  }
}

// Several stages, the last one short.
TEST(HierarchicalCommunicatorTest, LargeTensorsGoInStages) {
  EveryKind({0, 0, 1, 1}, 1'000'003, false, 0).Run();
  EveryKind({0, 1, 1, 1}, 1'000'003, true, 0).Run();
}

// A message from one host to the other says what the collective is.
TEST(HierarchicalCommunicatorTest, AHostSendsTheTensorsSizeOnce) {
  constexpr uint64_t kCount = 1 << 20;
  TestHosts hosts({0, 0, 1, 1});
  Values values = Numbers(4, kCount);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    Tensor tensor = TensorOf(values[communicator.rank().value()]);
    return AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
  }));
  const uint64_t roll_call = RollCall::MessageBytes(WorldSize(4));
  EXPECT_EQ(hosts.BytesFrom(0), kCount * sizeof(int32_t) + roll_call);
  EXPECT_EQ(hosts.BytesFrom(1), kCount * sizeof(int32_t) + roll_call);
}

TEST(HierarchicalCommunicatorTest, NoKindSendsMoreThanItMust) {
  constexpr uint64_t kCount = 3 << 10;
  constexpr uint64_t kBytes = kCount * sizeof(int32_t);
  TestHosts hosts({0, 0, 0, 1, 1, 1});
  const uint64_t roll_call = RollCall::MessageBytes(WorldSize(6));
  Values large = Numbers(6, 6 * kCount);
  Values small = Numbers(6, kCount);
  uint64_t sent = 0;
  const auto expect_bytes = [&](uint64_t bytes) {
    EXPECT_EQ(hosts.BytesFrom(1) - std::exchange(sent, hosts.BytesFrom(1)), bytes + roll_call);
  };
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    return ReduceScatter(communicator, TensorOf(large[rank]), TensorOf(small[rank]),
                         ReduceOp::kSum);
  }));
  expect_bytes(3 * kBytes);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    return AllGather(communicator, TensorOf(small[rank]), TensorOf(large[rank]));
  }));
  expect_bytes(3 * kBytes);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    return Broadcast(communicator, TensorOf(small[communicator.rank().value()]), Rank(4));
  }));
  expect_bytes(kBytes);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    Tensor tensor = TensorOf(small[communicator.rank().value()]);
    return Reduce(communicator, tensor, tensor, ReduceOp::kSum, Rank(1));
  }));
  expect_bytes(kBytes);
}

// The mean over ranks 0, 4, 8, 12 is 6; that of the hosts' means, 0 and 8, would be 4.
TEST(HierarchicalCommunicatorTest, TheMeanIsThatOfTheRanksOnUnequalHosts) {
  TestHosts hosts({0, 1, 1, 1});
  for (DType dtype : {DType::kFloat32, DType::kFloat16}) {
    std::vector<std::vector<float>> single(4, std::vector<float>(5));
    std::vector<std::vector<uint16_t>> half(4, std::vector<uint16_t>(5));
    for (int32_t rank = 0; rank < 4; ++rank) {
      single[rank].assign(5, 4.0f * rank);
      half[rank].assign(5, Float16FromFloat(4.0f * rank));
    }
    ExpectOk(hosts.Run([&](Communicator& communicator) {
      const int32_t rank = communicator.rank().value();
      void* data = single[rank].data();
      if (dtype == DType::kFloat16) data = half[rank].data();
      return AllReduce(communicator, {data, 5, dtype}, {data, 5, dtype}, ReduceOp::kAvg);
    }));
    if (dtype == DType::kFloat32) {
      EXPECT_THAT(single, Each(Each(6.0f)));
    } else {
      EXPECT_THAT(half, Each(Each(Float16FromFloat(6.0f))));
    }
  }
}

// 40000 + 40000 is more than float16 has.
TEST(HierarchicalCommunicatorTest, AMeanOfLargeHalvesIsFiniteOnHostsOfOneSize) {
  TestHosts hosts({0, 0, 1, 1});
  std::vector<std::vector<uint16_t>> values(4, std::vector<uint16_t>(9, Float16FromFloat(40000)));
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    const Tensor tensor{values[communicator.rank().value()].data(), 9, DType::kFloat16};
    return AllReduce(communicator, tensor, tensor, ReduceOp::kAvg);
  }));
  EXPECT_THAT(values, Each(Each(Float16FromFloat(40000))));
}

// Rank r has 40000 + 32 r everywhere: the sum of three is more than float16 has, the mean is exact.
TEST(HierarchicalCommunicatorTest, AMeanOfLargeHalvesIsFiniteOnHostsOfUnequalSize) {
  constexpr uint64_t kCount = 70'001;
  TestHosts hosts({0, 1, 0, 0, 1});
  const uint16_t mean = Float16FromFloat(40000 + 32 * 2);
  const std::vector<uint16_t> want(kCount, mean);
  std::vector<std::vector<uint16_t>> large(5);
  std::vector<std::vector<uint16_t>> small(5, std::vector<uint16_t>(kCount));
  const auto fill = [&](uint64_t count) {
    for (int32_t rank = 0; rank < 5; ++rank) {
      large[rank].assign(count, Float16FromFloat(40000 + 32 * static_cast<float>(rank)));
    }
  };
  const auto tensor_of = [](std::vector<uint16_t>& values) {
    return Tensor{values.data(), values.size(), DType::kFloat16};
  };
  fill(kCount);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    const Tensor tensor = tensor_of(large[communicator.rank().value()]);
    return AllReduce(communicator, tensor, tensor, ReduceOp::kAvg);
  }));
  EXPECT_THAT(large, Each(want));
  fill(kCount);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    return Reduce(communicator, tensor_of(large[rank]), tensor_of(small[rank]), ReduceOp::kAvg,
                  Rank(3));
  }));
  EXPECT_EQ(small[3], want);
  EXPECT_THAT(large[0], Each(Float16FromFloat(40000)));  // a source stays as it is
  fill(5 * kCount);
  ExpectOk(hosts.Run([&](Communicator& communicator) {
    const int32_t rank = communicator.rank().value();
    return ReduceScatter(communicator, tensor_of(large[rank]), tensor_of(small[rank]),
                         ReduceOp::kAvg);
  }));
  EXPECT_THAT(small, Each(want));
}

// SUM-1a: all ranks have the same bits, in every run; and they are near the exact sum.
TEST(HierarchicalCommunicatorTest, RealSumsAreBitwiseEqualOnAllRanksAndRuns) {
  for (const std::vector<int32_t>& host_of :
       {std::vector{0, 0, 1, 1}, std::vector{0, 1, 1, 2, 2, 2}}) {
    std::vector<std::vector<float>> first;
    for (uint64_t seed = 0; seed < 3; ++seed) {  // of the wires, not of the numbers
      TestHosts hosts(host_of, seed);
      std::mt19937 random(1);
      std::vector<std::vector<float>> values(host_of.size(), std::vector<float>(2000));
      for (auto& of_rank : values) {
        for (float& value : of_rank) value = std::ldexp(static_cast<float>(random()), -30);
      }
      double exact = 0;
      for (const auto& of_rank : values) exact += of_rank[1234];
      ExpectOk(hosts.Run([&](Communicator& communicator) {
        const Tensor tensor{values[communicator.rank().value()].data(), 2000, DType::kFloat32};
        return AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
      }));
      EXPECT_NEAR(values[0][1234], exact, 1e-5);
      EXPECT_THAT(values, Each(values[0]));
      if (first.empty()) first = values;
      EXPECT_EQ(values, first);
    }
  }
}

TEST(HierarchicalCommunicatorTest, OperationsThatDifferFailOnAllRanksAndTheNextWorks) {
  TestHosts hosts({0, 0, 1, 1});
  Values values = Numbers(4, 100);
  const std::vector<absl::Status> statuses = hosts.Run([&](Communicator& communicator) {
    const bool differs = communicator.rank() == Rank(3);
    Tensor tensor = TensorOf(values[communicator.rank().value()]);
    return AllReduce(communicator, tensor, tensor, differs ? ReduceOp::kMax : ReduceOp::kSum);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("op is SUM on rank 0 and MAX on rank 3"));
  }
  EXPECT_EQ(values, Numbers(4, 100));
  ExpectOk(hosts.Run([](Communicator& communicator) { return Barrier(communicator); }));
}

TEST(HierarchicalCommunicatorTest, MissingNamesExactlyWhoHasNotLaunched) {
  TestHosts hosts({0, 0, 1, 1, 1});
  for (const int32_t rank : {0, 2, 4}) ASSERT_TRUE(Barrier(hosts.at(rank)).ok());
  hosts.RunAll();
  for (const int32_t rank : {0, 2, 4}) {
    EXPECT_THAT(hosts.at(rank).Missing(), ElementsAre(Rank(1), Rank(3)));
  }
  ASSERT_TRUE(Barrier(hosts.at(1)).ok());
  hosts.RunAll();
  for (const int32_t rank : {0, 1, 2, 4}) {
    EXPECT_THAT(hosts.at(rank).Missing(), ElementsAre(Rank(3)));
  }
  ASSERT_TRUE(Barrier(hosts.at(3)).ok());
  hosts.RunAll();
  for (int32_t rank = 0; rank < 5; ++rank) EXPECT_TRUE(hosts.at(rank).Query({1}).done);
}

// It has launched, and that is known.
TEST(HierarchicalCommunicatorTest, MissingNamesARankThatStopsInTheStages) {
  TestHosts hosts({0, 0, 1, 1});
  Values values = Numbers(4, 100);
  for (int32_t rank = 0; rank < 4; ++rank) {
    const Tensor tensor = TensorOf(values[rank]);
    ASSERT_TRUE(AllReduce(hosts.at(rank), tensor, tensor, ReduceOp::kSum).ok());
  }
  hosts.Stop(3);
  hosts.RunAll();
  EXPECT_THAT(hosts.at(0).Missing(), ElementsAre(Rank(2)));  // which waits for its neighbour
  EXPECT_THAT(hosts.at(1).Missing(), ElementsAre(Rank(3)));
  EXPECT_THAT(hosts.at(2).Missing(), ElementsAre(Rank(3)));
}

TEST(HierarchicalCommunicatorTest, MissingNamesThePeerOfTheOldestMessage) {
  TestHosts hosts({0, 0, 1});
  Values values = Numbers(3, 10);
  for (const int32_t source : {1, 2}) {
    ASSERT_TRUE(Recv(hosts.at(0), TensorOf(values[source]), Rank(source)).ok());
  }
  hosts.RunAll();
  EXPECT_THAT(hosts.at(0).Missing(), ElementsAre(Rank(1)));
}

// Some ranks of up to 9 hosts of up to 4 ranks have not launched. A leader among them hides others.
TEST(HierarchicalCommunicatorTest, MissingIsRightOnAnyLayout) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> host_of;
    for (int32_t host = 0, count = static_cast<int32_t>(2 + random() % 8); host < count; ++host) {
      host_of.insert(host_of.end(), 1 + random() % 4, host);
    }
    std::shuffle(host_of.begin(), host_of.end(), random);
    TestHosts hosts(host_of, seed);
    std::vector<Rank> missing;
    bool leads_one = false;
    for (int32_t rank = 0; rank < hosts.size(); ++rank) {
      const bool leads = hosts.layout().LocalRankOf(rank) == 0;
      if (random() % 4 != 0 || (leads && seed % 2 == 0)) {
        ASSERT_TRUE(Barrier(hosts.at(rank)).ok());
        continue;
      }
      missing.emplace_back(rank);
      leads_one |= leads;
    }
    hosts.RunAll();
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", hosts ", absl::StrJoin(host_of, " ")));
    for (int32_t rank = 0; rank < hosts.size(); ++rank) {
      if (missing.empty() || std::count(missing.begin(), missing.end(), Rank(rank)) > 0) continue;
      const std::vector<Rank> named = hosts.at(rank).Missing();
      EXPECT_THAT(named, AllOf(IsSubsetOf(missing), Not(IsEmpty()))) << "rank " << rank;
      if (!leads_one) {
        EXPECT_EQ(named, missing) << "rank " << rank;
      }
    }
    if (testing::Test::HasFailure()) return;
  }
}

// Whichever ranks differ, all hear of the lowest one and of the lowest that differs from it.
TEST(HierarchicalCommunicatorTest, AnyDifferenceIsToldInTheSameWords) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<int32_t> host_of = {0, 1};
    for (int i = 0; i < 10; ++i) host_of.push_back(static_cast<int32_t>(random() % 2));
    for (int32_t host = 2; host < 7; ++host) host_of.push_back(host);
    std::shuffle(host_of.begin(), host_of.end(), random);
    TestHosts hosts(host_of, seed);
    std::vector<int32_t> counts(host_of.size(), 10);
    for (int differing = 0; differing < 3; ++differing) {
      counts[random() % counts.size()] += static_cast<int32_t>(1 + random() % 2);
    }
    Values values = Numbers(hosts.size(), 20);
    const std::vector<absl::Status> statuses = hosts.Run([&](Communicator& communicator) {
      const int32_t rank = communicator.rank().value();
      const Tensor tensor{values[rank].data(), static_cast<uint64_t>(counts[rank]), DType::kInt32};
      return AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
    });
    const auto other = std::find_if(counts.begin(), counts.end(),
                                    [&](int32_t count) { return count != counts[0]; });
    const std::string text = absl::StrCat("count is ", counts[0], " on rank 0 and ", *other,
                                          " on rank ", other - counts.begin());
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", hosts ", absl::StrJoin(host_of, " ")));
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    }
    EXPECT_EQ(values, Numbers(hosts.size(), 20));
    if (testing::Test::HasFailure()) return;
  }
}

TEST(HierarchicalCommunicatorTest, AnAbortNamesItsRankOnAllHosts) {
  TestHosts hosts({0, 0, 1, 1, 1});
  for (const int32_t rank : {0, 1, 2, 3}) ASSERT_TRUE(Barrier(hosts.at(rank)).ok());
  hosts.at(4).Abort(absl::DataLossError("the disk is full"));
  hosts.RunAll();
  for (const int32_t rank : {0, 1, 2, 3}) {
    const auto state = hosts.at(rank).Query({1});
    EXPECT_TRUE(state.done);
    EXPECT_EQ(state.status, absl::DataLossError("rank 4 aborted: the disk is full"));
  }
  EXPECT_EQ(Barrier(hosts.at(4)).status(), absl::DataLossError("the disk is full"));
}

TEST(HierarchicalCommunicatorTest, ADeadRankIsNamedEverywhere) {
  TestHosts hosts({0, 0, 1, 1});
  for (const int32_t rank : {0, 1, 2}) ASSERT_TRUE(Barrier(hosts.at(rank)).ok());
  hosts.between().KillRank(Rank(3));
  hosts.RunAll();
  for (const int32_t rank : {0, 1, 2}) {
    const auto state = hosts.at(rank).Query({1});
    EXPECT_TRUE(state.done);
    EXPECT_EQ(state.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(state.status.message()), HasSubstr("rank 3 died"));
  }
}

TEST(HierarchicalCommunicatorTest, ClosingInTheMiddleFailsThePeers) {
  TestHosts hosts({0, 0, 1, 1});
  for (int32_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(Barrier(hosts.at(rank)).ok());
  hosts.Close(2);
  hosts.RunAll();
  for (const int32_t rank : {0, 1, 3}) EXPECT_FALSE(hosts.at(rank).Query({1}).status.ok());
}

}  // namespace
}  // namespace pelton::hierarchy
