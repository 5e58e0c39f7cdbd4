// In a program of its own because the sanitizers need descriptors themselves: that for undefined
// behaviour opens a pipe to look at an object it has not seen.
#include <sys/resource.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

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
      rlimit limit{};
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 0;  // those that are open stay open
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return "setrlimit";
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

}  // namespace
}  // namespace pelton::shm
