// Ranks of the stand-in that are processes, as those of Python's tests are.
#include <sched.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/nccl/nccl_transport.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "comm/transport/shm/shm_transport.h"
#include "comm/transport/shm/test_processes.h"
#include "core/base/clock.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::stand_in {
namespace {

using ::testing::IsEmpty;

constexpr size_t kCount = 100'003;
constexpr size_t kSizeBytes = kCount * sizeof(float);

absl::Time FarDeadline() { return Clock::Real().Now() + absl::Seconds(60); }

// The stand-in's C interface in one rank, with a stream and memory of its device.
// Threads: one. Owns: the communicator, the stream and the memory.
class Device {
 public:
  explicit Device(const TransportOptions& options) : options_(options) {
    cuda().stream_create_with_flags(&stream, cuda::kStreamNonBlocking);
    cuda().allocate(reinterpret_cast<void**>(&memory), kSizeBytes);
  }
  ~Device() {
    // First: a stream works through what it has, and what lacks a rank hangs until it is aborted.
    if (communicator != nullptr) Close();
    cuda().stream_destroy(stream);
    cuda().release(memory);
  }

  const cuda::CudaTable& cuda() const { return runtime_->calls(); }
  const nccl::NcclTable& nccl() const { return library_->calls(); }

  // Rank 0's id for all. The ids of the stand-in are text.
  nccl::UniqueId ShareId() {
    nccl::UniqueId id{};
    if (options_.rank == Rank(0)) nccl().get_unique_id(&id);
    const auto ids = options_.bootstrap->AllGather("id", id.bytes, FarDeadline());
    id = {};
    ids.value()[0].copy(id.bytes, sizeof id.bytes - 1);
    return id;
  }

  // Begins to open the communicator.
  void Begin() {
    nccl::Config config;
    nccl().comm_init_rank_config(&communicator, options_.world_size.value(), ShareId(),
                                 options_.rank.value(), &config);
  }

  // What NCCL says once it is no longer in progress.
  int Settle() {
    int result = nccl::kInProgress;
    for (const absl::Time deadline = FarDeadline();
         result == nccl::kInProgress && Clock::Real().Now() < deadline; sched_yield()) {
      nccl().comm_get_async_error(communicator, &result);
    }
    return result;
  }

  // Puts a sum over all ranks on the stream; it is there when NCCL is no longer in progress.
  int AddUp() {
    nccl().all_reduce(memory, memory, kCount, nccl::Type::kFloat32, nccl::Op::kSum, communicator,
                      stream);
    return Settle();
  }

  // In good order if it can be: the peers of an aborted rank may still be at its last operation.
  void Close() {
    nccl().comm_finalize(communicator);
    if (Settle() == nccl::kOk) {
      nccl().comm_destroy(communicator);
    } else {
      nccl().comm_abort(communicator);
    }
  }

  nccl::Handle communicator = nullptr;
  cuda::StreamHandle stream = nullptr;
  float* memory = nullptr;

 private:
  const TransportOptions& options_;
  const std::unique_ptr<const cuda::CudaRuntime> runtime_ =
      cuda::CudaRuntime::Load(LibraryPath()).value();
  const std::unique_ptr<const nccl::NcclLibrary> library_ =
      nccl::NcclLibrary::Load(LibraryPath()).value();
};

// Runs `body` in as many processes.
shm::Processes Start(int world_size, const shm::Processes::Body& body) {
  return shm::Processes(world_size, [&](const TransportOptions& options) {
    setenv("PELTON_STAND_IN_PROCESSES", "1", 1);
    return body(options);
  });
}

std::string SumOnTheStream(const TransportOptions& options) {
  Device device(options);
  device.Begin();
  if (const int result = device.Settle()) return absl::StrCat("opening: ", result);
  const std::vector<float> mine(kCount, static_cast<float>(options.rank.value() + 1));
  std::vector<float> sum(kCount);
  device.cuda().memcpy_async(device.memory, mine.data(), kSizeBytes, cuda::kMemcpyDefault,
                             device.stream);
  if (const int result = device.AddUp()) return absl::StrCat("adding up: ", result);
  device.cuda().memcpy_async(sum.data(), device.memory, kSizeBytes, cuda::kMemcpyDefault,
                             device.stream);
  device.cuda().stream_synchronize(device.stream);
  const int n = options.world_size.value();
  for (const float value : sum) {
    if (value != static_cast<float>(n * (n + 1) / 2)) return absl::StrCat("the sum is ", value);
  }
  return "";
}

TEST(ProcessTest, AllReduceGivesTheSumAndNothingStays) {
  shm::Processes processes = Start(2, [](const TransportOptions& options) -> std::string {
    for (int turn = 0; turn < 2; ++turn) {
      const std::string wrong = SumOnTheStream(options);
      if (!wrong.empty()) return wrong;
    }
    const int open = StandIn::Get().open_count();
    return open == 0 ? "" : absl::StrCat(open, " things are open");
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

// "" if every rank gets each other's number, between two and from all.
std::string Exchange(Communicator& communicator, float* memory) {
  const int n = communicator.world_size().value();
  const int rank = communicator.rank().value();
  const auto number = [&](int at) { return Tensor{memory + at, 1, DType::kFloat32}; };
  memory[0] = static_cast<float>(rank);
  std::vector<absl::StatusOr<Completion>> all;
  all.push_back(AllGather(communicator, number(0), {memory + 1, static_cast<uint64_t>(n)}));
  all.push_back(Send(communicator, number(0), Rank((rank + 1) % n)));
  all.push_back(Recv(communicator, number(n + 1), Rank((rank + n - 1) % n)));
  for (const auto& completion : all) {
    if (!completion.ok()) return completion.status().ToString();
    const absl::Status done = Await(communicator, *completion, FarDeadline());
    if (!done.ok()) return done.ToString();
  }
  for (int r = 0; r < n; ++r) {
    if (memory[1 + r] != static_cast<float>(r)) return absl::StrCat("gathered ", memory[1 + r]);
  }
  return memory[n + 1] == static_cast<float>((rank + n - 1) % n) ? "" : "a wrong number came";
}

TEST(ProcessTest, TheTransportOfGpusWorksBetweenProcesses) {
  shm::Processes processes = Start(3, [](const TransportOptions& options) -> std::string {
    auto host = MakeShmTransport(options);
    if (!host.ok()) return host.status().ToString();
    TransportOptions with_host = options;
    with_host.host = host->get();
    Device device(options);
    NcclOptions nccl_options;
    nccl_options.nccl_path = nccl_options.cudart_path = LibraryPath();
    auto transport = MakeNcclTransport(with_host, nccl_options);
    if (!transport.ok()) return transport.status().ToString();
    auto communicator =
        (*transport)->Open(CommunicatorId(1), Group::World(options.world_size), FarDeadline());
    if (!communicator.ok()) return communicator.status().ToString();
    return Exchange(**communicator, device.memory);
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

TEST(ProcessTest, AKilledRankIsARemoteError) {
  shm::Processes processes = Start(2, [](const TransportOptions& options) -> std::string {
    Device device(options);
    device.Begin();
    if (const int result = device.Settle()) return absl::StrCat("opening: ", result);
    shm::Processes::Mark(options.rank.value());
    while (options.rank == Rank(1)) sched_yield();
    device.AddUp();
    int result = nccl::kOk;
    for (const absl::Time deadline = FarDeadline();
         result == nccl::kOk && Clock::Real().Now() < deadline; sched_yield()) {
      device.nccl().comm_get_async_error(device.communicator, &result);
    }
    return result == nccl::kRemoteError ? "" : absl::StrCat("it says ", result);
  });
  processes.AwaitMark(0, 1);
  processes.AwaitMark(1, 1);
  kill(processes.pid(1), SIGKILL);
  EXPECT_THAT(processes.Join(0), IsEmpty());
}

TEST(ProcessTest, ARankThatWaitsForAnotherCanBeAborted) {
  shm::Processes processes = Start(2, [](const TransportOptions& options) -> std::string {
    Device device(options);
    if (options.rank == Rank(1)) {
      device.ShareId();
      return "";
    }
    device.Begin();
    int result = nccl::kOk;
    device.nccl().comm_get_async_error(device.communicator, &result);
    if (result != nccl::kInProgress) return absl::StrCat("it says ", result);
    const absl::Time began = Clock::Real().Now();
    device.nccl().comm_abort(std::exchange(device.communicator, nullptr));
    const absl::Duration took = Clock::Real().Now() - began;
    return took < absl::Seconds(10) ? "" : absl::StrCat("it took ", absl::ToInt64Seconds(took));
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

}  // namespace
}  // namespace pelton::stand_in
