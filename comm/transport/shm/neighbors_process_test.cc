// Neighbour operations between processes: memory that is read across them, and ranks that die.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/neighbors.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

using TablePointer = std::shared_ptr<const WeightTable>;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

// The mean of a rank and the next one, along a ring in one direction.
TablePointer RingOf(Rank rank, WorldSize size) {
  const int32_t n = size.value();
  const Rank next((rank.value() + 1) % n);
  const Rank previous((rank.value() + n - 1) % n);
  return WeightTable::Create(
             {.own = 0.5, .sources = {{previous, 0.5}}, .destinations = {{next, 1}}})
      .value();
}

float ValueOf(int rank, size_t i) { return static_cast<float>((i % 1000) * (rank + 1)); }

// "" if the average along the ring is right. The same tensor for in place.
std::string CheckAverage(Communicator& communicator, float* source, float* target, size_t count) {
  const int rank = communicator.rank().value();
  const int n = communicator.world_size().value();
  for (size_t i = 0; i < count; ++i) source[i] = ValueOf(rank, i);
  const TablePointer table = RingOf(communicator.rank(), communicator.world_size());
  auto completion = NeighborAllReduce(communicator, {source, count, DType::kFloat32},
                                      {target, count, DType::kFloat32}, *table);
  if (!completion.ok()) return std::string(completion.status().message());
  const absl::Status status = Await(communicator, *completion, Soon());
  if (!status.ok()) return std::string(status.message());
  for (size_t i = 0; i < count; ++i) {
    const float want = (ValueOf(rank, i) + ValueOf((rank + n - 1) % n, i)) / 2;
    if (target[i] != want) return absl::StrCat("element ", i, " of ", count, " is ", target[i]);
  }
  return "";
}

// In the post, in an entry, and in memory, at the sizes where that changes; several pieces.
constexpr size_t kCounts[] = {1, 6, 7, 4096, 4097, 100'001, (1 << 20) + 3};
constexpr size_t kMost = size_t{2} << 20;

std::string CheckAverages(Communicator& communicator, float* source, float* target) {
  for (const size_t count : kCounts) {
    for (float* const place : {target, source}) {
      const std::string wrong = CheckAverage(communicator, source, place, count);
      if (!wrong.empty()) return absl::StrCat(place == source ? "in place: " : "", wrong);
    }
  }
  return "";
}

TEST(NeighborsProcessTest, TensorsInRegionsAreCombined) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    auto region = Region::Create(2 * kMost * sizeof(float), "test").value();
    if (!end->communicator->Register(*region).ok()) return "Register";
    auto* const data = reinterpret_cast<float*>(region->data());
    return CheckAverages(*end->communicator, data + 3, data + kMost);
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(NeighborsProcessTest, TensorsInPrivateMemoryAreCombined) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    std::vector<float> source(kMost);
    std::vector<float> target(kMost);
    return CheckAverages(*end->communicator, source.data() + 1, target.data());
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// The mean of all ranks at the center, and of a rank and the center elsewhere.
TablePointer StarOf(Rank rank, WorldSize size, Rank center) {
  std::vector<Neighbor> others;
  for (int other = 0; other < size.value(); ++other) {
    const bool is_edge = rank == center || Rank(other) == center;
    if (is_edge && Rank(other) != rank) others.push_back({Rank(other), 1});
  }
  const double share = 1.0 / static_cast<double>(others.size() + 1);
  std::vector<Neighbor> sources = others;
  for (Neighbor& source : sources) source.weight = share;
  return WeightTable::Create({.own = share, .sources = sources, .destinations = others}).value();
}

// An operation is handled in the memory of one before, which had fewer sources.
TEST(NeighborsProcessTest, EachOperationHasRoomForItsOwnSources) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    // All memory comes from one heap, so that what is written past its end is found by malloc().
    mallopt(M_MMAP_THRESHOLD, 1 << 25);
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    constexpr size_t kCount = 100'000;
    std::vector<float> target(kCount);
    for (int center = 0; center < 3; ++center) {
      std::vector<float> source(kCount, static_cast<float>(options.rank.value()));
      const TablePointer table = StarOf(options.rank, options.world_size, Rank(center));
      auto completion =
          NeighborAllReduce(*end->communicator, {source.data(), kCount, DType::kFloat32},
                            {target.data(), kCount, DType::kFloat32}, *table);
      if (!completion.ok()) return std::string(completion.status().message());
      const absl::Status status = Await(*end->communicator, *completion, Soon());
      if (!status.ok()) return std::string(status.message());
      const float mean = options.rank == Rank(center) ? 1 : (options.rank.value() + center) / 2.0F;
      if (target != std::vector<float>(kCount, mean)) return absl::StrCat("center ", center);
    }
    return "";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(NeighborsProcessTest, TensorsThatNobodyMayReadAreCopiedAndCombined) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    ForbidReaders();
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    std::vector<float> source(kMost);
    std::vector<float> target(kMost);
    return CheckAverages(*end->communicator, source.data(), target.data());
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// Averages of 4 MiB along the ring until one fails; "" never.
std::string AverageUntilItFails(const TransportOptions& options, absl::Duration timeout) {
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return std::string(end.status().message());
  const TablePointer table = RingOf(options.rank, options.world_size);
  auto region = Region::Create(2 * kMost * sizeof(float), "test").value();
  if (!end->communicator->Register(*region).ok()) return "Register";
  const Tensor source{region->data(), kMost / 2, DType::kFloat32};
  const Tensor target{region->data() + kMost * sizeof(float), kMost / 2, DType::kFloat32};
  while (true) {
    auto completion = NeighborAllReduce(*end->communicator, source, target, *table);
    const absl::Status status = completion.ok()
                                    ? Await(*end->communicator, *completion, absl::Now() + timeout)
                                    : completion.status();
    if (!status.ok()) return std::string(status.message());
    Processes::Mark(options.rank.value());
  }
}

TEST(NeighborsProcessTest, ANeighborThatIsKilledInTheMiddleIsNamed) {
  Processes processes(3, [](const TransportOptions& options) {
    return AverageUntilItFails(options, absl::Seconds(60));
  });
  processes.AwaitMark(1, 5);
  const absl::Time killed_at = absl::Now();
  kill(processes.pid(1), SIGKILL);
  const std::string who = absl::StrCat("rank 1 (pid ", processes.pid(1), ") died");
  EXPECT_THAT(processes.Join(0), HasSubstr(who));
  EXPECT_THAT(processes.Join(2), HasSubstr(who));
  EXPECT_LT(absl::Now() - killed_at, absl::Seconds(20));
}

TEST(NeighborsProcessTest, ANeighborThatStopsIsNamedAtTheDeadline) {
  Processes processes(2, [](const TransportOptions& options) {
    return AverageUntilItFails(options, absl::Seconds(3));
  });
  processes.AwaitMark(1, 5);
  kill(processes.pid(1), SIGSTOP);
  EXPECT_THAT(processes.Join(0), HasSubstr("waiting for rank(s) 1"));
  kill(processes.pid(1), SIGCONT);
  EXPECT_THAT(processes.Join(1), HasSubstr("rank 0"));
}

// As long as the deadline has not passed, a stop is a delay.
TEST(NeighborsProcessTest, ANeighborThatGoesOnAfterAStopIsWaitedFor) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    std::vector<float> source(kMost);
    std::vector<float> target(kMost);
    std::string wrong;
    for (int i = 0; i < 200 && wrong.empty(); ++i) {
      wrong = CheckAverage(*end->communicator, source.data(), target.data(), 5000);
      Processes::Mark(options.rank.value());
    }
    return wrong;
  });
  processes.AwaitMark(1, 5);
  kill(processes.pid(1), SIGSTOP);
  absl::SleepFor(absl::Seconds(5));  // ALLOW: the time that it stands still is what is tested
  kill(processes.pid(1), SIGCONT);
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// Rank 1 averages with nobody, and leaves in good order: what the others do goes on.
TEST(NeighborsProcessTest, ARankThatLeavesEndsOnlyWhatNeedsIt) {
  Processes processes(3, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    if (options.rank == Rank(1)) return "";
    const Rank other(2 - options.rank.value());
    const TablePointer pair =
        WeightTable::Create({.own = 0.5, .sources = {{other, 0.5}}, .destinations = {{other, 1}}})
            .value();
    std::vector<float> values(5000);
    const Tensor tensor{values.data(), values.size(), DType::kFloat32};
    for (int i = 0; i < 1000; ++i) {
      values.assign(values.size(), static_cast<float>(options.rank.value()));
      auto completion = NeighborAllReduce(*end->communicator, tensor, tensor, *pair);
      if (!completion.ok()) return std::string(completion.status().message());
      const absl::Status status = Await(*end->communicator, *completion, Soon());
      if (!status.ok()) return std::string(status.message());
      if (values != std::vector<float>(values.size(), 1)) return "a wrong mean";
    }
    const TablePointer ring = RingOf(options.rank, options.world_size);
    auto completion = NeighborAllReduce(*end->communicator, tensor, tensor, *ring);
    const absl::Status status =
        completion.ok() ? Await(*end->communicator, *completion, Soon()) : completion.status();
    return status.ok() ? "an average with a rank that has left" : "";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

}  // namespace
}  // namespace pelton::shm
