// What is particular to NCCL: its errors, its streams, what it cannot do, and what is left behind.
#include <algorithm>
#include <latch>
#include <string>
#include <vector>

#include "comm/await.h"
#include "comm/collectives.h"
#include "comm/transport/nccl/gpu_world.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "core/base/clock.h"
#include "core/memory/cuda/cuda_runtime.h"
#include "gmock/gmock.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kSystemError = 2;    // ncclSystemError
constexpr int kCudaFailure = 700;  // cudaErrorIllegalAddress
constexpr int kNoMemory = 2;       // cudaErrorMemoryAllocation

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }
absl::Time FarDeadline() { return Clock::Real().Now() + absl::Seconds(60); }
absl::Time NearDeadline() { return Clock::Real().Now() + absl::Milliseconds(200); }

// Lets the time pass in Park, whose returns may be spurious.
void ParkFor(Communicator& communicator, absl::Duration duration) {
  const absl::Time until = Clock::Real().Now() + duration;
  while (Clock::Real().Now() < until) communicator.Park(until);
}

class NcclCommunicatorTest : public testing::Test {
 protected:
  NcclCommunicatorTest() : stand_in_(stand_in::StandIn::Get()) {
    options_.nccl_path = options_.cudart_path = stand_in::LibraryPath();
    runtime_ = *cuda::CudaRuntime::Load(options_.cudart_path);
  }
  // Whatever happened in a test, nothing stays behind.
  ~NcclCommunicatorTest() override {
    stand_in_.reset();
    EXPECT_EQ(stand_in_.open_count(), 0);
  }

  absl::Status MakeStatus(const NcclOptions& options) {
    SimFabric fabric(WorldSize(1));
    const auto host = fabric.MakeTransport(Rank(0));
    return MakeNcclTransport({Rank(0), WorldSize(1), "", nullptr, FarDeadline(), host.get()},
                             options)
        .status();
  }

  cuda::StreamHandle MakeStream() {
    cuda::StreamHandle stream = nullptr;
    runtime_->calls().stream_create_with_flags(&stream, cuda::kStreamNonBlocking);
    return stream;
  }
  // Waits until all that is on the stream is done, and closes it.
  void Finish(cuda::StreamHandle stream) {
    runtime_->calls().stream_synchronize(stream);
    runtime_->calls().stream_destroy(stream);
  }

  // An allreduce on two ranks while `call` fails once on one of them.
  void ExpectFailure(const char* call, int result, int skip, absl::StatusCode code,
                     const std::string& text);

  const stand_in::StandIn& stand_in_;
  NcclOptions options_;
  std::unique_ptr<const cuda::CudaRuntime> runtime_;
};

absl::StatusOr<Completion> LaunchSum(Communicator& communicator, float& value) {
  const Tensor tensor{&value, 1, DType::kFloat32};
  return AllReduce(communicator, tensor, tensor, ReduceOp::kSum);
}

Operation SumOf(std::vector<float>& values) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.count = values.size();
  operation.set_source(Locate(values.data(), values.size() * sizeof(float)));
  operation.set_target(operation.source());
  return operation;
}

TEST_F(NcclCommunicatorTest, WithoutAGpuItSaysSo) {
  stand_in_.set_device_count(0);
  const absl::Status status = MakeStatus(options_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("no GPU"), HasSubstr("no CUDA-capable device")));
}

TEST_F(NcclCommunicatorTest, RefusesADeviceThatIsNotThere) {
  options_.device = 64;
  EXPECT_THAT(TextOf(MakeStatus(options_)), HasSubstr("device: 64 is not in [0, 64)"));
  options_.device.reset();
  stand_in_.fail("cudaGetDevice", 0, kCudaFailure);
  EXPECT_THAT(TextOf(MakeStatus(options_)), HasSubstr("cudaGetDevice: an error"));
}

TEST_F(NcclCommunicatorTest, NamesTheLibraryThatIsMissing) {
  options_.nccl_path = "/nowhere/libnccl.so.2";
  EXPECT_EQ(MakeStatus(options_).code(), absl::StatusCode::kNotFound);
  options_.cudart_path = "/nowhere/libcudart.so.13";
  EXPECT_THAT(TextOf(MakeStatus(options_)), HasSubstr("/nowhere/libcudart.so.13"));
  options_.cudart_path = "libc.so.6";
  EXPECT_THAT(TextOf(MakeStatus(options_)), HasSubstr("has no cudaGetDeviceCount"));
}

TEST_F(NcclCommunicatorTest, RefusesAnOrderOfLaunchesThatIsEachRanksOwn) {
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
  const absl::Status status = MakeStatus(options_);
  unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(TextOf(status), HasSubstr("NCCL_LAUNCH_ORDER_IMPLICIT is 1"));
  EXPECT_EQ(MakeStatus(options_), absl::OkStatus());
}

TEST_F(NcclCommunicatorTest, NeedsATransportOfHosts) {
  const absl::Status status =
      MakeNcclTransport({Rank(3), WorldSize(4), "", nullptr, FarDeadline(), nullptr}, options_)
          .status();
  EXPECT_THAT(TextOf(status), HasSubstr("rank 3: host:"));
}

TEST_F(NcclCommunicatorTest, IsRegisteredByName) {
  const auto entry = TransportRegistry::Get().Find("nccl");
  ASSERT_TRUE(entry.ok()) << entry.status();
}

TEST_F(NcclCommunicatorTest, TheEnvironmentChoosesToAgreeFirst) {
  EXPECT_FALSE(NcclOptions::FromEnvironment().agree_first);
  setenv("PELTON_NCCL_AGREE_FIRST", "1", 1);
  EXPECT_TRUE(NcclOptions::FromEnvironment().agree_first);
  unsetenv("PELTON_NCCL_AGREE_FIRST");
}

// A stream's work before Launch comes before the operation, and what is put behind it after it.
TEST_F(NcclCommunicatorTest, OperationsAreOrderedByStreams) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    const cuda::StreamHandle handle = MakeStream();
    const cuda::StreamHandle other_handle = MakeStream();
    CudaStream stream(handle, communicator.rank().value());
    CudaStream other(other_handle, communicator.rank().value());
    std::vector<float> ones(1000, 1.0f);
    std::vector<float> values(1000);
    std::vector<float> results(1000);
    const size_t bytes = values.size() * sizeof(float);
    for (int round = 0; round < 20; ++round) {
      std::fill(results.begin(), results.end(), 0.0f);
      runtime_->calls().memcpy_async(values.data(), ones.data(), bytes, 4, handle);
      const auto completion = communicator.Launch(SumOf(values), stream);
      ASSERT_TRUE(completion.ok()) << completion.status();
      ASSERT_EQ(PutBehind(communicator, *completion, other), absl::OkStatus());
      runtime_->calls().memcpy_async(results.data(), values.data(), bytes, 4, other_handle);
      runtime_->calls().stream_synchronize(other_handle);
      ASSERT_EQ(std::count(results.begin(), results.end(), 2.0f), 1000) << "round " << round;
      ASSERT_EQ(Await(communicator, *completion, FarDeadline()), absl::OkStatus());
      // Of one that is done there is nothing to wait for.
      EXPECT_EQ(PutBehind(communicator, *completion, other), absl::OkStatus());
    }
    Finish(handle);
    Finish(other_handle);
  });
}

TEST_F(NcclCommunicatorTest, MessagesAreOrderedByStreams) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    const cuda::StreamHandle handle = MakeStream();
    CudaStream stream(handle, communicator.rank().value());
    const float mine = 1.0f + static_cast<float>(communicator.rank().value());
    float out = 0;
    float in = 0;
    float result = 0;
    runtime_->calls().memcpy_async(&out, &mine, sizeof out, 4, handle);
    Operation send;
    send.kind = OperationKind::kSend;
    send.peer = 1 - communicator.rank().value();
    send.count = 1;
    send.set_source(Locate(&out, sizeof out));
    Operation recv = send;
    recv.kind = OperationKind::kRecv;
    recv.set_target(Locate(&in, sizeof in));
    const auto sent = communicator.Launch(send, stream);
    const auto received = communicator.Launch(recv, stream);
    ASSERT_TRUE(sent.ok() && received.ok());
    ASSERT_EQ(PutBehind(communicator, *received, stream), absl::OkStatus());
    runtime_->calls().memcpy_async(&result, &in, sizeof in, 4, handle);
    Finish(handle);
    EXPECT_EQ(result, 3.0f - mine);
    EXPECT_EQ(Await(communicator, *sent, FarDeadline()), absl::OkStatus());
    EXPECT_EQ(Await(communicator, *received, FarDeadline()), absl::OkStatus());
  });
}

TEST_F(NcclCommunicatorTest, LaunchRefusesAStreamThatItCannotUse) {
  GpuWorld world(WorldSize(1), options_);
  world.Run([&](Communicator& communicator) {
    std::vector<float> values(8, 1.0f);
    CudaStream of_another(nullptr, 5);
    EXPECT_THAT(TextOf(communicator.Launch(SumOf(values), of_another).status()),
                HasSubstr("stream: of device 5, the communicator's is 0"));
    CudaStream captured(nullptr, 0);
    stand_in_.fail("cudaStreamIsCapturing", 0, /*it is=*/1);
    EXPECT_THAT(TextOf(communicator.Launch(SumOf(values), captured).status()),
                HasSubstr("stream: is being captured into a CUDA graph"));
  });
}

TEST_F(NcclCommunicatorTest, RegistersMemoryAndTakesItBack) {
  GpuWorld world(WorldSize(1), options_);
  world.Run([&](Communicator& communicator) {
    std::vector<float> values(1024, 1.0f);
    const auto region = Region::Adopt(values.data(), values.size() * sizeof(float), "bucket");
    const int before = stand_in_.open_count();
    ASSERT_EQ(communicator.Register(*region), absl::OkStatus());
    EXPECT_EQ(stand_in_.open_count(), before + 1);
    communicator.Deregister(region->id());
    communicator.Deregister(region->id());  // of none there is nothing to take back
    EXPECT_EQ(stand_in_.open_count(), before);
    stand_in_.fail("ncclCommRegister", 0, kSystemError);
    EXPECT_THAT(TextOf(communicator.Register(*region)),
                AllOf(HasSubstr("'bucket'"), HasSubstr("ncclCommRegister")));
    stand_in_.break_all(kSystemError);
    EXPECT_FALSE(communicator.Register(*region).ok());
    stand_in_.break_all(0);
  });
}

TEST_F(NcclCommunicatorTest, AnOldNcclRefusesToRegisterByName) {
  stand_in_.set_version(21604);
  GpuWorld world(WorldSize(1), options_);
  world.Run([&](Communicator& communicator) {
    float value = 1;
    const auto region = Region::Adopt(&value, sizeof value, "bucket");
    const absl::Status status = communicator.Register(*region);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(TextOf(status), AllOf(HasSubstr("ncclCommRegister"), HasSubstr("2.16.4")));
  });
}

TEST_F(NcclCommunicatorTest, OpenRefusesRanksThatDoNotFitTogether) {
  GpuWorld world(WorldSize(2), options_);
  SimFabric& hosts = world.hosts();
  options_.agree_first = true;
  options_.device = 1;
  const auto host = hosts.MakeTransport(Rank(1));
  auto other =
      MakeNcclTransport({Rank(1), WorldSize(2), "", nullptr, FarDeadline(), host.get()}, options_);
  ASSERT_TRUE(other.ok()) << other.status();
  world.RunTransports([&](Transport& transport, Rank rank) {
    Transport& mine = rank == Rank(1) ? **other : transport;
    const absl::Status status =
        mine.Open(CommunicatorId(1), Group::World(WorldSize(2)), FarDeadline()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(TextOf(status), HasSubstr("agree_first is 0 on rank 0 and 1 on rank 1"));
  });
}

TEST_F(NcclCommunicatorTest, OpenRefusesDifferentVersions) {
  GpuWorld world(WorldSize(2), options_);
  stand_in_.set_version(23007);
  const auto host = world.hosts().MakeTransport(Rank(1));
  auto other =
      MakeNcclTransport({Rank(1), WorldSize(2), "", nullptr, FarDeadline(), host.get()}, options_);
  ASSERT_TRUE(other.ok()) << other.status();
  world.RunTransports([&](Transport& transport, Rank rank) {
    Transport& mine = rank == Rank(1) ? **other : transport;
    const absl::Status status =
        mine.Open(CommunicatorId(1), Group::World(WorldSize(2)), FarDeadline()).status();
    EXPECT_THAT(TextOf(status), HasSubstr("NCCL is 2.28.9 on rank 0 and 2.30.7 on rank 1"));
  });
}

// Each call of Open fails on one rank: that one says why, and its peer hears it long before its
// deadline; but for the last call, after which a rank is through and need not hear of the other any
// more.
TEST_F(NcclCommunicatorTest, OpenFailsWithTheCallThatFailed) {
  const std::pair<const char*, int> calls[] = {{"cudaMalloc", kNoMemory},
                                               {"cudaStreamCreateWithFlags", kCudaFailure},
                                               {"ncclGetUniqueId", kSystemError},
                                               {"ncclCommInitRankConfig", kSystemError},
                                               {"ncclCommGetAsyncError", kSystemError}};
  for (const auto& [name, result] : calls) {
    const char* const call = name;  // clang 14 captures no structured binding
    GpuWorld world(WorldSize(2), options_);
    stand_in_.fail(call, 0, result);
    std::vector<std::string> texts(2);
    world.RunTransports([&](Transport& transport, Rank rank) {
      const absl::Status status =
          transport.Open(CommunicatorId(1), Group::World(WorldSize(2)), FarDeadline()).status();
      const bool may_be_through = call == std::string("ncclCommGetAsyncError");
      if (may_be_through && status.ok()) return;
      EXPECT_THAT(TextOf(status), AllOf(HasSubstr("opening communicator 1"), HasSubstr(call)));
      texts[static_cast<size_t>(rank.value())] = TextOf(status);
    });
    EXPECT_THAT(texts, testing::Contains(testing::Not(HasSubstr("aborted"))));
  }
}

void NcclCommunicatorTest::ExpectFailure(const char* call, int result, int skip,
                                         absl::StatusCode code, const std::string& text) {
  GpuWorld world(WorldSize(2), options_);
  std::atomic<int> opened = 0;
  world.Run([&](Communicator& communicator) {
    if (++opened == 2) stand_in_.fail(call, skip, result);
    while (opened < 2) std::this_thread::yield();
    std::vector<float> values(8, 1.0f);
    const cuda::StreamHandle handle = MakeStream();
    CudaStream stream(handle, communicator.rank().value());
    absl::Status status;
    for (int round = 0; round < 3 && status.ok(); ++round) {
      const auto completion = communicator.Launch(SumOf(values), stream);
      status =
          completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
    }
    Finish(handle);
    EXPECT_EQ(status.code(), code) << call << ": " << status;
    EXPECT_THAT(TextOf(status), HasSubstr(text));
    EXPECT_EQ(Barrier(communicator).status(), status);
  });
}

TEST_F(NcclCommunicatorTest, AFailedCallEndsTheCommunicatorOnAllRanks) {
  ExpectFailure("ncclAllReduce", kSystemError, 0, absl::StatusCode::kUnavailable,
                "ncclAllReduce: unhandled system error");
  ExpectFailure("ncclAllReduce", 4, 2, absl::StatusCode::kInvalidArgument, "invalid argument");
}

TEST_F(NcclCommunicatorTest, ADeviceErrorEndsTheCommunicatorOnAllRanks) {
  ExpectFailure("cudaEventRecord", kCudaFailure, 2, absl::StatusCode::kInternal, "cudaEventRecord");
  ExpectFailure("cudaEventQuery", kCudaFailure, 0, absl::StatusCode::kInternal, "cudaEventQuery");
  ExpectFailure("cudaEventCreateWithFlags", kNoMemory, 0, absl::StatusCode::kAborted,
                "cudaEventCreateWithFlags");
}

TEST_F(NcclCommunicatorTest, AFailedGroupEndsTheCommunicator) {
  for (const char* call : {"ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv"}) {
    GpuWorld world(WorldSize(1), options_);
    world.Run([&](Communicator& communicator) {
      stand_in_.fail(call, 0, kSystemError);
      float values[2] = {1, 0};
      Operation operation;
      operation.kind = OperationKind::kAllToAll;
      operation.count = 1;
      operation.set_source(Locate(&values[0], sizeof(float)));
      operation.set_target(Locate(&values[1], sizeof(float)));
      HostStream stream;
      const auto completion = communicator.Launch(operation, stream);
      ASSERT_TRUE(completion.ok()) << completion.status();
      const absl::Status status = Await(communicator, *completion, FarDeadline());
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << call;
      EXPECT_THAT(TextOf(status), AllOf(HasSubstr("alltoall"), HasSubstr("rank 0")));
    });
  }
}

// What NCCL finds out in the background, as when a network fails, while nothing calls it.
TEST_F(NcclCommunicatorTest, AnErrorInTheBackgroundIsNoticed) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) {
      const absl::Status end = Await(communicator, *Barrier(communicator), FarDeadline());
      EXPECT_EQ(end, absl::OkStatus());
      ParkFor(communicator, absl::Milliseconds(100));
      stand_in_.break_all(6);
      ParkFor(communicator, absl::Milliseconds(300));
      return;
    }
    EXPECT_EQ(Await(communicator, *Barrier(communicator), FarDeadline()), absl::OkStatus());
    float value = 1;
    const auto completion = LaunchSum(communicator, value);
    ASSERT_TRUE(completion.ok()) << completion.status();
    const absl::Status status = Await(communicator, *completion, FarDeadline());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(TextOf(status), AllOf(HasSubstr("rank 0: NCCL communicator 1"),
                                      HasSubstr("remote process exited")));
  });
  stand_in_.break_all(0);
}

TEST_F(NcclCommunicatorTest, ADeathOnTheHostsSideEndsTheCommunicator) {
  GpuWorld world(WorldSize(3), options_);
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(2)) {
      ParkFor(communicator, absl::Milliseconds(50));
      world.hosts().KillRank(Rank(2));
      return;
    }
    float value = 1;
    const auto completion = LaunchSum(communicator, value);
    const absl::Status status =
        completion.ok() ? Await(communicator, *completion, FarDeadline()) : completion.status();
    // NCCL may be quicker to notice than the hosts.
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(TextOf(status),
                testing::AnyOf(HasSubstr("rank 2 died"), HasSubstr("remote process exited")));
  });
}

// The kernel of rank 0 hangs: rank 1's is never put on its device. Nobody drives rank 0 when its
// communicator is aborted, and yet its stream comes free.
TEST_F(NcclCommunicatorTest, AnAbortFreesTheStreamThoughNobodyDrives) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) {
      ParkFor(communicator, absl::Milliseconds(300));
      return;
    }
    stand_in_.set_busy_polls(0);
    const cuda::StreamHandle handle = MakeStream();
    CudaStream stream(handle, 0);
    std::vector<float> values(8, 1.0f);
    const auto completion = communicator.Launch(SumOf(values), stream);
    ASSERT_TRUE(completion.ok()) << completion.status();
    communicator.Abort(absl::CancelledError("the user left"));
    Finish(handle);
    EXPECT_EQ(communicator.Query(*completion).status, absl::CancelledError("the user left"));
    EXPECT_FALSE(communicator.Progress());
  });
}

TEST_F(NcclCommunicatorTest, ADeadlineNamesTheMissingRankAndLeavesNothing) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return ParkFor(communicator, absl::Milliseconds(400));
    float value = 1;
    const auto completion = LaunchSum(communicator, value);
    ASSERT_TRUE(completion.ok()) << completion.status();
    const absl::Status status = Await(communicator, *completion, NearDeadline());
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(TextOf(status), HasSubstr("waiting for rank(s) 1"));
  });
}

// NCCL's abort waits for the peers', and one that is stopped makes none.
TEST_F(NcclCommunicatorTest, ADeadlineIsKeptWhereThePeerIsStopped) {
  GpuWorld world(WorldSize(2), options_);
  std::latch told(1);
  world.Run([&](Communicator& communicator) {
    if (communicator.rank() == Rank(1)) return told.wait();
    float value = 1;
    const auto completion = LaunchSum(communicator, value);
    ASSERT_TRUE(completion.ok()) << completion.status();
    const absl::Time start = Clock::Real().Now();
    const absl::Status status = Await(communicator, *completion, NearDeadline());
    EXPECT_LT(Clock::Real().Now() - start, absl::Seconds(10));
    told.count_down();
    EXPECT_THAT(TextOf(status), HasSubstr("waiting for rank(s) 1"));
  });
}

TEST_F(NcclCommunicatorTest, AClosingThatNcclRefusesIsAnAbort) {
  for (const char* call : {"ncclCommFinalize", "ncclCommGetAsyncError"}) {
    {
      GpuWorld world(WorldSize(1), options_);  // its end awaits those of its communicators
      world.Run([&](Communicator& communicator) {
        float value = 1;
        ASSERT_EQ(Await(communicator, *LaunchSum(communicator, value), FarDeadline()),
                  absl::OkStatus());
        stand_in_.fail(call, 0, kSystemError);
      });
    }
    EXPECT_EQ(stand_in_.open_count(), 0) << call;
  }
}

TEST_F(NcclCommunicatorTest, AnAbortWithoutAReasonHasOne) {
  GpuWorld world(WorldSize(1), options_);
  world.Run([&](Communicator& communicator) {
    communicator.Abort(absl::OkStatus());
    EXPECT_EQ(Barrier(communicator).status(), absl::CancelledError("aborted without a reason"));
  });
}

// More messages under way than the hosts' communicator takes posts for: they follow.
TEST_F(NcclCommunicatorTest, PostsThatFindTheHostFullFollowLater) {
  GpuWorld world(WorldSize(2), options_);
  world.Run([&](Communicator& communicator) {
    std::vector<float> values(200, -1.0f);
    const bool sends = communicator.rank() == Rank(0);
    std::vector<Completion> completions;
    for (size_t i = 0; i < values.size(); ++i) {
      if (sends) values[i] = static_cast<float>(i);
      const Tensor tensor{&values[i], 1, DType::kFloat32};
      const auto launched =
          sends ? Send(communicator, tensor, Rank(1)) : Recv(communicator, tensor, Rank(0));
      ASSERT_TRUE(launched.ok()) << launched.status();
      completions.push_back(*launched);
    }
    for (Completion completion : completions) {
      ASSERT_EQ(Await(communicator, completion, FarDeadline()), absl::OkStatus());
    }
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i));
  });
}

}  // namespace
}  // namespace pelton
