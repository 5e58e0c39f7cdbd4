#include "torch_bindings/module/parallel_module.h"

#include <torch/nn/functional.h>
#include <torch/nn/modules.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "backend/test_ranks.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Net = torch::nn::Sequential;

constexpr int64_t kBatch = 6;
constexpr int kSteps = 6;
constexpr double kRate = 0.1;

// Seeds are the process's, and ranks are threads: everything is drawn by an arithmetic of its own.
at::Tensor Drawn(at::IntArrayRef sizes, double seed) {
  const int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count, torch::kDouble) * 1.7 + seed).reshape(sizes);
}

Net MakeNet(double seed, int64_t hidden = 9) {
  Net net(torch::nn::Linear(5, hidden), torch::nn::Tanh(), torch::nn::BatchNorm1d(hidden),
          torch::nn::Linear(hidden, 3));
  net->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) parameter.copy_(Drawn(parameter.sizes(), seed++));
  return net;
}

at::Tensor Loss(Net& net, int rank, int step) {
  const at::Tensor output = net->forward(Drawn({kBatch, 5}, 100.0 * rank + step));
  return (output - Drawn({kBatch, 3}, 7.0 * rank - step)).square().mean();
}

// What one process computes that knows every rank's data.
std::vector<at::Tensor> Reference(int ranks, int steps) {
  Net net = MakeNet(0);
  torch::optim::SGD optimizer(net->parameters(), kRate);
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = torch::zeros({}, torch::kDouble);
    for (int rank = 0; rank < ranks; ++rank) loss = loss + Loss(net, rank, step) / ranks;
    loss.backward();
    optimizer.step();
  }
  return net->parameters();
}

bool AreClose(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!torch::allclose(a[i], b[i], 1e-10, 1e-12)) return false;
  }
  return a.size() == b.size();
}

bool AreEqual(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return a.size() == b.size();
}

absl::Status Train(ParallelModule& parallel, Net& net, torch::optim::Optimizer& optimizer, int rank,
                   int steps = kSteps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    ASSIGN_OR_RETURN(const at::Tensor loss,
                     parallel.Forward([&] { return Loss(net, rank, step); }));
    RETURN_IF_ERROR(parallel.Backward(loss));
    RETURN_IF_ERROR(parallel.Step(optimizer));
  }
  return absl::OkStatus();
}

// Every rank trains with a seed of its own; the nets they end with, by rank.
std::vector<Net> TrainRanks(int ranks, const ParallelModuleOptions& options, int steps = kSteps) {
  std::vector<Net> nets;
  for (int rank = 0; rank < ranks; ++rank) nets.push_back(MakeNet(31.0 * rank));
  const auto results = RunRanks(ranks, [&](const BackendOptions& start) -> absl::Status {
    ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, Backend::Start(start));
    const int rank = start.rank.value();
    Net& net = nets[static_cast<size_t>(rank)];
    ASSIGN_OR_RETURN(const auto parallel, ParallelModule::Wrap(backend, net.ptr(), options));
    torch::optim::SGD optimizer(net->parameters(), kRate);
    RETURN_IF_ERROR(Train(*parallel, net, optimizer, rank, steps));
    return parallel->Stop();
  });
  for (const absl::Status& result : results) EXPECT_EQ(result, absl::OkStatus());
  return nets;
}

TEST(ParallelModuleTest, GradientsOfAllRanksAreAveraged) {
  for (const int ranks : {1, 2, 3}) {
    const std::vector<Net> nets = TrainRanks(ranks, {});
    const std::vector<at::Tensor> wanted = Reference(ranks, kSteps);
    for (const Net& net : nets) {
      EXPECT_TRUE(AreClose(net->parameters(), wanted)) << ranks << " ranks";
      EXPECT_TRUE(AreEqual(net->parameters(), nets[0]->parameters())) << ranks << " ranks";
    }
  }
}

TEST(ParallelModuleTest, OneLocalStepIsOneOfTheMeanGradient) {
  const std::vector<Net> nets =
      TrainRanks(2, {.algorithm = "local_sgd", .algorithm_options = {{"interval", "1"}}});
  for (const Net& net : nets) EXPECT_TRUE(AreClose(net->parameters(), Reference(2, kSteps)));
}

TEST(ParallelModuleTest, EveryKindOfRoundBringsTheRanksTogether) {
  const std::vector<ParallelModuleOptions> kinds = {
      {.algorithm = "bytegrad", .algorithm_options = {{"hierarchical", "false"}}},
      {.algorithm = "decentralized"},
      {.algorithm = "local_sgd", .algorithm_options = {{"interval", "3"}}},
      {.algorithm = "diloco", .algorithm_options = {{"interval", "3"}}},
      {.algorithm = "async_model_average"}};
  for (const ParallelModuleOptions& kind : kinds) {
    const std::vector<Net> nets = TrainRanks(2, kind);
    // The other two leave each rank weights of its own, near the others'.
    if (kind.algorithm != "decentralized" && kind.algorithm != "async_model_average") {
      EXPECT_TRUE(AreEqual(nets[0]->parameters(), nets[1]->parameters())) << kind.algorithm;
    }
    for (size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      const at::Tensor apart = nets[0]->parameters()[i] - nets[1]->parameters()[i];
      EXPECT_LT(apart.abs().max().item<double>(), 0.5) << kind.algorithm << ", parameter " << i;
    }
  }
}

TEST(ParallelModuleTest, LocalBackwardsAreCommunicatedWithTheNextOne) {
  std::vector<Net> nets = {MakeNet(0), MakeNet(0)};
  const auto results = RunRanks(2, [&](const BackendOptions& start) -> absl::Status {
    ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, Backend::Start(start));
    const int rank = start.rank.value();
    Net& net = nets[static_cast<size_t>(rank)];
    ASSIGN_OR_RETURN(const auto parallel, ParallelModule::Wrap(backend, net.ptr(), {}));
    for (const bool synchronized : {false, true}) {
      parallel->SetSynchronized(synchronized);
      ASSIGN_OR_RETURN(const at::Tensor loss,
                       parallel->Forward([&] { return Loss(net, rank, synchronized ? 1 : 0); }));
      RETURN_IF_ERROR(parallel->Backward(loss));
    }
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) ASSERT_EQ(result, absl::OkStatus());
  Net plain = MakeNet(0);
  for (const int rank : {0, 1}) {
    for (const int step : {0, 1}) (Loss(plain, rank, step) / 2).backward();
  }
  for (size_t i = 0; i < plain->parameters().size(); ++i) {
    const at::Tensor wanted = plain->parameters()[i].grad();
    EXPECT_TRUE(torch::equal(nets[0]->parameters()[i].grad(), nets[1]->parameters()[i].grad()));
    EXPECT_TRUE(torch::allclose(nets[0]->parameters()[i].grad(), wanted, 1e-10, 1e-12)) << i;
  }
}

// One rank's text, of a Wrap or a training that is to fail on both.
template <typename Body>
std::vector<absl::Status> Fail(Body body) {
  return RunRanks(2, [&](const BackendOptions& start) -> absl::Status {
    ASSIGN_OR_RETURN(std::shared_ptr<Backend> backend, Backend::Start(start));
    return body(backend, start.rank.value());
  });
}

TEST(ParallelModuleTest, ModulesThatDifferAreNamedOnAllRanks) {
  const auto results = Fail([](const std::shared_ptr<Backend>& backend, int rank) {
    Net net = MakeNet(0, rank == 0 ? 9 : 8);
    return ParallelModule::Wrap(backend, net.ptr(), {.name = "net"}).status();
  });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(results[0].message(),
              AllOf(HasSubstr("module 'net'"), HasSubstr("rank(s) 1 are not")));
  EXPECT_EQ(results[1].code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(results[1].message(),
              HasSubstr("here: 0.weight Double [8, 5], where rank 0 has 0.weight Double [9, 5]"));
}

TEST(ParallelModuleTest, AnAlgorithmOfAPythonOptimizersIsRefused) {
  for (const std::string algorithm : {"qadam", "one_bit_adam"}) {
    const auto results = Fail([&](const std::shared_ptr<Backend>& backend, int) {
      Net net = MakeNet(0);
      return ParallelModule::Wrap(backend, net.ptr(), {.algorithm = algorithm}).status();
    });
    for (const absl::Status& result : results) {
      EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(result.message(), HasSubstr(algorithm + " belongs to an optimizer"));
    }
  }
}

TEST(ParallelModuleTest, AStepThatTheAlgorithmDidNotSeeIsAnError) {
  const auto results = Fail([](const std::shared_ptr<Backend>& backend, int rank) -> absl::Status {
    Net net = MakeNet(0);
    ASSIGN_OR_RETURN(const auto parallel,
                     ParallelModule::Wrap(backend, net.ptr(), {.algorithm = "local_sgd"}));
    torch::optim::SGD optimizer(net->parameters(), kRate);
    for (int step = 0; step < 3; ++step) {
      ASSIGN_OR_RETURN(const at::Tensor loss,
                       parallel->Forward([&] { return Loss(net, rank, step); }));
      RETURN_IF_ERROR(parallel->Backward(loss));
      optimizer.step();
    }
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) {
    EXPECT_EQ(result.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(result.message(), HasSubstr("replace optimizer.step() by Step(optimizer)"));
  }
}

TEST(ParallelModuleTest, ARankThatLeavesEndsTheOthersBackwardWithItsName) {
  const auto results = Fail([](const std::shared_ptr<Backend>& backend, int rank) -> absl::Status {
    Net net = MakeNet(0);
    ASSIGN_OR_RETURN(const auto parallel,
                     ParallelModule::Wrap(backend, net.ptr(), {.name = "net"}));
    torch::optim::AdamW optimizer(net->parameters());
    RETURN_IF_ERROR(Train(*parallel, net, optimizer, rank, rank == 1 ? 1 : 3));
    return absl::OkStatus();
  });
  EXPECT_EQ(results[1], absl::OkStatus());
  EXPECT_EQ(results[0].code(), absl::StatusCode::kUnavailable) << results[0];
  EXPECT_THAT(results[0].message(),
              AllOf(HasSubstr("model 'net', rank 0, round 2"), HasSubstr("rank 1 (pid ")));
}

// The other one trains on and does not ask for the end of the averaging.
TEST(ParallelModuleTest, ARankThatLeavesAnAveragingBesideTheTrainingIsNotHeldUpByTheOthers) {
  absl::Notification has_left;
  const auto results = Fail([&](const std::shared_ptr<Backend>& backend, int rank) -> absl::Status {
    Net net = MakeNet(0);
    {
      ASSIGN_OR_RETURN(
          const auto parallel,
          ParallelModule::Wrap(backend, net.ptr(),
                               {.algorithm = "async_model_average", .timeout = absl::Minutes(10)}));
      torch::optim::SGD optimizer(net->parameters(), kRate);
      RETURN_IF_ERROR(Train(*parallel, net, optimizer, rank, 1));
      if (rank == 0) {
        EXPECT_TRUE(has_left.WaitForNotificationWithTimeout(absl::Seconds(40)));
      }
    }
    if (rank == 1) has_left.Notify();
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) EXPECT_EQ(result, absl::OkStatus());
}

}  // namespace
}  // namespace pelton
