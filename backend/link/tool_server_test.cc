#include "backend/link/tool_server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/backend.h"
#include "backend/link/daemon_questions.h"
#include "backend/link/sight.h"
#include "backend/link/test_daemons.h"
#include "backend/model.h"
#include "comm/group.h"
#include "core/base/clock.h"
#include "proto/daemon.grpc.pb.h"

namespace pelton {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

// As protobuf writes them; the messages of these services are in no header of the system's.
constexpr char kServing[] = "\x08\x01";          // HealthCheckResponse{status: SERVING}
constexpr char kNotServing[] = "\x08\x02";       // HealthCheckResponse{status: NOT_SERVING}
const std::string kListServices("\x3a\x00", 2);  // ServerReflectionRequest{list_services: ""}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  grpc::Slice slice;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&slice).ok());
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

// Threads: one. Owns: a daemon with its tools' door, and a channel to it.
class ToolServerTest : public testing::Test {
 protected:
  void SetUp() override {
    LinkServer& server = daemons_.server(0);
    Start({[&server](proto::LinkStatus* status) { *status = server.Status(); },
           [&server] { server.RequestStop(); }});
  }

  void Start(ToolAnswers answers) {
    auto started = ToolServer::Start(path_, std::move(answers));
    ASSERT_TRUE(started.ok()) << started.status();
    tools_ = *std::move(started);
    channel_ =
        grpc::CreateChannel(absl::StrCat("unix:", path_), grpc::InsecureChannelCredentials());
    deadline_ = std::chrono::system_clock::now() + std::chrono::seconds(30);
  }

  // Sends one message, reads one, and says that there is no more.
  std::string Call(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(channel_);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(deadline_);
    auto call = stub.PrepareCall(&context, method, &queue);
    const auto await = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    grpc::ByteBuffer answer;
    call->StartCall(nullptr);
    if (!await()) return "not started";
    call->WriteLast(BufferOf(request), grpc::WriteOptions(), nullptr);
    if (!await()) return "not written";
    call->Read(&answer, nullptr);
    const bool has_answer = await();
    grpc::Status status;
    call->Finish(&status, nullptr);
    await();
    return has_answer ? BytesOf(answer) : absl::StrCat("refused: ", status.error_message());
  }

  TestDaemons daemons_{1};
  const std::string path_ = absl::StrCat(daemons_.PathOf(0), ".grpc");
  std::unique_ptr<ToolServer> tools_;
  std::shared_ptr<grpc::Channel> channel_;
  std::chrono::system_clock::time_point deadline_;
};

TEST_F(ToolServerTest, TellsTheStatusAndTakesTheRequestToStop) {
  const auto stub = proto::Daemon::NewStub(channel_);
  proto::LinkStatus status;
  grpc::ClientContext first;
  first.set_deadline(deadline_);
  ASSERT_TRUE(stub->Status(&first, {}, &status).ok());
  EXPECT_EQ(status.daemon_pid(), getpid());
  EXPECT_EQ(status.world_size(), 1);
  EXPECT_FALSE(daemons_.server(0).stop_requested());
  grpc::ClientContext second;
  second.set_deadline(deadline_);
  proto::StopResponse stopped;
  ASSERT_TRUE(stub->Stop(&second, {}, &stopped).ok());
  EXPECT_TRUE(daemons_.server(0).stop_requested());
}

TEST_F(ToolServerTest, AnswersAsGrpcsHealthServiceDoes) {
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", ""), kServing);
  tools_->SetHealthy(false);
  EXPECT_EQ(Call("/grpc.health.v1.Health/Check", ""), kNotServing);
}

TEST_F(ToolServerTest, ReflectionListsItsServices) {
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string services = Call(method, kListServices);
  EXPECT_THAT(services, HasSubstr("pelton.proto.Daemon"));
  EXPECT_THAT(services, HasSubstr("grpc.health.v1.Health"));
}

TEST_F(ToolServerTest, TheStatusIsAskedForByThePath) {
  const auto status = AskStatus(path_, Clock::Real().Now() + absl::Seconds(30));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->daemon_pid(), getpid());
  const auto nobody = AskStatus("/nowhere/0.grpc", Clock::Real().Now() + absl::Seconds(30));
  EXPECT_TRUE(absl::IsNotFound(nobody.status())) << nobody.status();
}

TEST_F(ToolServerTest, ARankIsNotEndedByTools) {
  tools_.reset();
  Start({[](proto::LinkStatus*) {}, nullptr});
  grpc::ClientContext context;
  context.set_deadline(deadline_);
  proto::StopResponse stopped;
  const grpc::Status refused = proto::Daemon::NewStub(channel_)->Stop(&context, {}, &stopped);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

// A rank whose backend is in its own process, with a model in its second round, of which one bucket
// is ready.
TEST_F(ToolServerTest, ARankInProcessTellsOfItsModelsRound) {
  tools_.reset();
  BackendOptions options;
  options.token = "a-token-of-sixteen-bytes-or-more";
  options.coordinator_address = "127.0.0.1:0";
  options.serves_coordinator = true;
  auto backend = Backend::Start(options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  auto door = ToolServer::StartFor(backend->get(), path_);
  ASSERT_TRUE(door.ok()) << door.status();
  ModelOptions of_model;
  of_model.name = "net";
  of_model.group = Group::World(WorldSize(1));
  of_model.bucket_size_bytes = 40;
  auto model = Model::Create(**backend, of_model,
                             {{"weight", DType::kFloat32, 10}, {"bias", DType::kFloat32, 10}});
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Time deadline = Clock::Real().Now() + absl::Seconds(30);
  ASSERT_TRUE((*model)->rounds().EndRound().ok());
  ASSERT_TRUE((*model)->rounds().WaitRound(deadline).ok());
  ASSERT_TRUE((*model)->rounds().MarkReady(SlotId(1)).ok());
  const auto status = AskStatus(path_, deadline);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->daemon_pid(), 0);
  EXPECT_EQ(status->trainer_pid(), getpid());
  EXPECT_EQ(status->round(), 2u);
  ASSERT_EQ(status->models_size(), 1);
  EXPECT_EQ(status->models(0).name(), "net");
  EXPECT_EQ(status->models(0).buckets(), 2);
  EXPECT_EQ(status->models(0).ready(), 1);
  EXPECT_THAT(status->models(0).awaited(), HasSubstr("'weight' has not been marked ready"));
  EXPECT_THAT(TextOf(*status),
              ContainsRegex("\nsession, actor [0-9]+ \\(pelton::Session\\): mailbox "
                            "[0-9]+ of [0-9]+, turns [1-9]"));
  EXPECT_THAT(TextOf(*status), HasSubstr("scheduler of 'net', actor "));
  model->reset();
  EXPECT_EQ(AskStatus(path_, deadline)->models_size(), 0);
}

TEST_F(ToolServerTest, TheEndTakesTheSocketAlong) {
  EXPECT_EQ(access(path_.c_str(), F_OK), 0);
  tools_.reset();
  EXPECT_NE(access(path_.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace pelton
