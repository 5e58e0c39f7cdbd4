// In a program of its own because the sanitizers need descriptors themselves: that for undefined
// behaviour opens a pipe to look at an object it has not seen.
#include <sys/resource.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/neighbors.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "core/pipeline/weight_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// Those that are open stay open. False: it could not be done.
bool ForbidDescriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = 0;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

// Rank 0 has no descriptor left when rank 1 shares another region.
TEST(ShmDescriptorsTest, ARankWithoutDescriptorsBlamesItselfOnAllRanks) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    Communicator& communicator = *end->communicator;
    const size_t count = size_t{1} << 20;
    auto region = Region::Create(count * sizeof(float), "test").value();
    const bool is_first = options.rank == Rank(0);
    if (is_first) {
      if (!communicator.Register(*region).ok()) return "Register";
      if (!ForbidDescriptors()) return "setrlimit";
    }
    auto barrier = Barrier(communicator);
    if (!barrier.ok()) return std::string(barrier.status().message());
    absl::Status status = Await(communicator, *barrier, Soon());
    if (!status.ok()) return std::string(status.message());
    if (!is_first && !communicator.Register(*region).ok()) return "Register";
    const Tensor tensor{region->data(), count, DType::kFloat32};
    auto reduced = AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
    status = reduced.ok() ? Await(communicator, *reduced, Soon()) : reduced.status();
    if (!status.ok()) return std::string(status.message());
    // Rank 1 may have done rank 0's part of the work; then both learn of it from a later operation.
    for (const absl::Time until = Soon(); status.ok() && absl::Now() < until;) {
      auto next = Barrier(communicator);
      status = next.ok() ? Await(communicator, *next, Soon()) : next.status();
    }
    return std::string(status.message());
  });
  const std::string who = absl::StrCat("rank 0 (pid ", processes.pid(0),
                                       ") cannot take in what rank 1 shares with it: ");
  EXPECT_THAT(processes.Join(0), AllOf(HasSubstr(who), HasSubstr("Too many open files")));
  EXPECT_THAT(processes.Join(1), HasSubstr("rank 0 aborted: " + who));
}

// Nothing can be launched that its peer could meet, so all ranks hear why, and at once.
std::string LaunchWithoutDescriptors(const TransportOptions& options, bool sends) {
  ForbidReaders();
  auto end = MakeEnd(options, MakeShmTransport);
  if (!end.ok()) return std::string(end.status().message());
  Communicator& communicator = *end->communicator;
  std::vector<float> data(size_t{1} << 18);
  const Tensor tensor{data.data(), data.size(), DType::kFloat32};
  const bool is_first = options.rank == Rank(0);
  const Rank peer(is_first ? 1 : 0);
  const auto table =
      WeightTable::Create({.own = 0.5, .sources = {{peer, 0.5}}, .destinations = {{peer, 1}}});
  if (is_first && !ForbidDescriptors()) return "setrlimit";
  const absl::StatusOr<Completion> launched =
      !sends     ? NeighborAllReduce(communicator, tensor, tensor, **table)
      : is_first ? Send(communicator, tensor, peer)
                 : Recv(communicator, tensor, peer);
  const absl::Status status =
      launched.ok() ? Await(communicator, *launched, Soon()) : launched.status();
  const absl::Status later = Barrier(communicator).status();
  if (absl::IsResourceExhausted(later))
    return absl::StrCat("to be tried again: ", status.message());
  return std::string(status.message());
}

TEST(ShmDescriptorsTest, WhatCannotBeCopiedEndsTheCommunicatorOnAllRanks) {
  for (const bool sends : {true, false}) {
    Processes processes(2, [sends](const TransportOptions& options) {
      return LaunchWithoutDescriptors(options, sends);
    });
    const std::string operation = sends ? "send: " : "neighbor_allreduce: ";
    EXPECT_THAT(processes.Join(0),
                AllOf(HasSubstr("rank 0: rank 0: " + operation), HasSubstr("Too many open files")));
    EXPECT_THAT(processes.Join(1), AllOf(HasSubstr("rank 0 aborted: rank 0: " + operation),
                                         HasSubstr("Too many open files")));
  }
}

TEST(ShmDescriptorsTest, ARankThatCannotOpenACommunicatorTellsTheOthers) {
  Processes processes(2, [](const TransportOptions& options) -> std::string {
    auto end = MakeEnd(options, MakeShmTransport);
    if (!end.ok()) return std::string(end.status().message());
    if (options.rank == Rank(0) && !ForbidDescriptors()) return "setrlimit";
    auto opened = end->transport->Open(CommunicatorId(2), Group::World(WorldSize(2)), Soon());
    // Until the other one has heard of it.
    auto barrier = Barrier(*end->communicator);
    if (barrier.ok()) Await(*end->communicator, *barrier, Soon()).IgnoreError();
    return std::string(opened.status().message());
  });
  EXPECT_THAT(processes.Join(0), HasSubstr("Too many open files"));
  EXPECT_THAT(processes.Join(1), AllOf(HasSubstr("rank 0 has given up opening it: "),
                                       HasSubstr("Too many open files")));
}

}  // namespace
}  // namespace pelton::shm
