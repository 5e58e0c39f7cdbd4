// What a model's gradients, momenta and weights are after its rounds, whatever its backward passes
// do, with a backend of each rank.
#include "torch_bindings/csrc/wrapped_model.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backend/model_port.h"
#include "comm/control/control.h"
#include "comm/group.h"
#include "core/plan/round_mode.h"
#include "core/round/trigger.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_backends.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::autograd::variable_list;

using SharedBackend = std::shared_ptr<Backend>;
using SharedModel = std::shared_ptr<WrappedModel>;
using Moment = WrappedModel::Moment;

bool Holds(const at::Tensor& tensor, double value) {
  return tensor.defined() && tensor.equal(torch::full_like(tensor, value));
}

PortOptions OptionsOf(const SharedBackend& backend,
                      const std::string& algorithm = "gradient_allreduce",
                      AlgorithmOptions algorithm_options = {}) {
  PortOptions options;
  options.model.name = "net";
  options.model.group = Group::World(backend->world_size());
  options.model.algorithm = algorithm;
  options.model.algorithm_options = std::move(algorithm_options);
  options.model.timeout = absl::Seconds(10);
  return options;
}

// A model of two parameters. A backward pass gives "w" the gradient `of_w` and "b" `of_b`.
// Threads: its rank's. Owns: the parameters and the model.
struct Net {
  explicit Net(const PortOptions& options, const SharedBackend& backend,
               const std::vector<Moment>& moments = {})
      : rank(backend->rank().value()),
        control(backend->control()),
        model(
            ValueOrThrow(WrappedModel::Create(backend, options, {{{"w", w}, {"b", b}}, moments}))) {
  }
  explicit Net(const SharedBackend& backend) : Net(OptionsOf(backend), backend) {}

  // What was made last comes first in a backward pass.
  at::Tensor Loss(double of_w, double of_b) const {
    const at::Tensor second = (b * of_b).sum();
    return second + (w * of_w).sum();
  }
  void Backward(double of_w, double of_b) const { Loss(of_w, of_b).backward(); }
  // 1 on rank 0, 3 on rank 1: the mean is 2.
  double mine() const { return 1 + 2 * rank; }
  // What one rank fails in next is no part of a round that another one is still in.
  void AwaitOthers() const { EXPECT_TRUE(Barrier(control, "rounds", Soon()).ok()); }
  void ZeroGrad() const {
    w.mutable_grad() = at::Tensor();
    b.mutable_grad() = at::Tensor();
  }
  bool Have(double of_w, double of_b) const {
    return Holds(w.grad(), of_w) && Holds(b.grad(), of_b);
  }

  const at::Tensor w = torch::ones({2, 3}).set_requires_grad(true);
  const at::Tensor b = torch::ones({3}).set_requires_grad(true);
  const int rank;
  Control& control;
  const SharedModel model;
};

void OnNets(const std::function<void(Net& net)>& body) {
  OnRanks(2, [&](const SharedBackend& backend) {
    Net net(backend);
    body(net);
  });
}

// As an identity whose backward pass calls `body` before it goes on.
class Calling : public torch::autograd::Function<Calling> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            int64_t body) {
    context->saved_data["body"] = body;
    return input.clone();
  }
  static variable_list backward(torch::autograd::AutogradContext* context,
                                const variable_list& gradients) {
    const at::AutoGradMode with_graph(true);
    (*reinterpret_cast<const std::function<void()>*>(context->saved_data["body"].toInt()))();
    return {gradients[0], at::Tensor()};
  }
};

// `body` outlives the graph.
at::Tensor Call(const std::function<void()>& body, const at::Tensor& input) {
  return Calling::apply(input, reinterpret_cast<int64_t>(&body));
}

// What a user registers with register_post_accumulate_grad_hook.
// Threads: autograd's. Owns: what is called.
class AfterAccumulation final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterAccumulation(std::function<void(const at::Tensor&)> body)
      : body_(std::move(body)) {}
  void operator()(const torch::autograd::Variable& parameter) override { body_(parameter); }

 private:
  const std::function<void(const at::Tensor&)> body_;
};

at::Tensor Input() { return torch::ones({}).set_requires_grad(true); }

TEST(WrappedModelTest, AModelWithoutATimeoutOfItsOwnHasThatOfItsBackend) {
  OnRanks(2, [](const SharedBackend& backend) {
    PortOptions options = OptionsOf(backend);
    options.model.timeout = absl::ZeroDuration();
    Net net(options, backend);
    net.Backward(net.mine(), 10 * net.mine());
    EXPECT_TRUE(net.Have(2, 20));
  });
}

TEST(WrappedModelTest, GradientsAreMeansOfTheRanksOnceBackwardReturns) {
  OnNets([](Net& net) {
    for (int pass = 1; pass <= 4; ++pass) {
      net.Backward(pass * net.mine(), 10 * net.mine());
      EXPECT_TRUE(net.Have(2 * pass, 20)) << pass;
      net.ZeroGrad();
    }
    EXPECT_EQ(net.model->statistics().rounds, 4U);
  });
}

TEST(WrappedModelTest, AGradientMayBeAddedToAndAveragedAgain) {
  OnNets([](Net& net) {
    net.Backward(net.mine(), net.mine());
    net.Backward(net.mine(), 2 * net.mine());
    EXPECT_TRUE(net.Have(4, 6));
  });
}

TEST(WrappedModelTest, AParameterThatOneRankDoesNotUseCountsAsZeroThere) {
  OnNets([](Net& net) {
    for (int pass = 0; pass < 3; ++pass) {
      if (net.rank == 0) net.Backward(4, 8);
      if (net.rank == 1) (net.w * 2).sum().backward();
      EXPECT_TRUE(net.Have(3, 4)) << pass;
      net.ZeroGrad();
    }
  });
}

TEST(WrappedModelTest, AParameterThatNoRankUsesKeepsTheGradientThatItHad) {
  OnNets([](Net& net) {
    (net.w * net.mine()).sum().backward();
    EXPECT_TRUE(Holds(net.w.grad(), 2));
    EXPECT_FALSE(net.b.grad().defined());
    net.b.mutable_grad() = torch::full({3}, 7.0);
    (net.w * net.mine()).sum().backward();
    EXPECT_TRUE(Holds(net.b.grad(), 7));
  });
}

TEST(WrappedModelTest, WhatWasAccumulatedWithoutSynchronisationTravelsWithTheNextRound) {
  OnNets([](Net& net) {
    net.model->SetSynchronized(false);
    net.Backward(net.mine(), 10 * net.mine());
    EXPECT_TRUE(net.Have(net.mine(), 10 * net.mine())) << "nothing is communicated";
    EXPECT_EQ(net.model->statistics().rounds, 0U);
    net.model->SetSynchronized(true);
    // This pass does not use "b", whose gradient is to be communicated still.
    (net.w * net.mine()).sum().backward();
    EXPECT_TRUE(net.Have(4, 20));
    net.ZeroGrad();
    (net.w * net.mine()).sum().backward();
    EXPECT_FALSE(net.b.grad().defined()) << "that was the one before";
    net.b.mutable_grad() = torch::full({3}, net.mine());
    net.model->MarkLocal({"b"});
    (net.w * net.mine()).sum().backward();
    EXPECT_TRUE(net.Have(4, 2)) << "although no backward pass has made the one of b";
  });
}

TEST(WrappedModelTest, AGradientThatIsASumAlreadyIsNotSummedAgain) {
  OnRanks(2, [](const SharedBackend& backend) {
    Net net(OptionsOf(backend, "gradient_allreduce", {{"average", "false"}}), backend);
    net.Backward(net.mine(), 1);
    EXPECT_TRUE(net.Have(4, 2));
    net.ZeroGrad();
    net.Backward(net.mine(), 1);
    EXPECT_TRUE(net.Have(4, 2)) << "a new one is no sum";
    net.AwaitOthers();
    net.model->SetSynchronized(false);
    net.w.mutable_grad() = at::Tensor();
    net.Backward(net.mine(), 1);
    net.model->SetSynchronized(true);
    EXPECT_TRUE(net.model->CheckLocalGradients({"w"}).ok());
    EXPECT_THAT(net.model->CheckLocalGradients({"b"}).message(), HasSubstr("parameter 'b' of"));
    EXPECT_THAT(ErrorOf([&] { net.Backward(net.mine(), 1); }),
                AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("cannot add to a gradient")));
  });
}

TEST(WrappedModelTest, BucketsFollowTheOrderInWhichGradientsCame) {
  OnRanks(2, [](const SharedBackend& backend) {
    for (const bool w_first : {true, false}) {
      PortOptions options = OptionsOf(backend);
      options.model.bucket_size_bytes = 16;
      Net net(options, backend);
      for (int pass = 0; pass < 3; ++pass) {
        if (w_first) {
          net.Backward(net.mine(), 10);
        } else {
          const at::Tensor second = (net.w * net.mine()).sum();
          (second + (net.b * 10).sum()).backward();
        }
        EXPECT_TRUE(net.Have(2, 10));
        net.ZeroGrad();
        const std::vector<std::string> first = {w_first ? "w" : "b"};
        const std::vector<std::string> last = {w_first ? "b" : "w"};
        EXPECT_THAT(net.model->Buckets(), ElementsAre(first, last));
      }
    }
  });
}

TEST(WrappedModelTest, ABackwardThatNeedsNoParameterTakesPartByTheModelsOutput) {
  OnNets([](Net& net) {
    for (int pass = 0; pass < 2; ++pass) {
      const at::Tensor output = net.rank == 0 ? net.Loss(4, 8) + Input() : Input() * 2;
      net.model->WatchOutputs({output}, RoundMode::kTraining);
      output.backward();
      EXPECT_TRUE(net.Have(2, 4)) << pass;
      net.ZeroGrad();
    }
  });
}

TEST(WrappedModelTest, GradientsThatAreAskedForByTheirTensorsAreNoRound) {
  OnNets([](Net& net) {
    const at::Tensor input = Input();
    const at::Tensor output = net.Loss(1, 1) * input;
    net.model->WatchOutputs({output}, RoundMode::kTraining);
    const variable_list found = torch::autograd::grad({output}, {net.w, input}, {}, true);
    EXPECT_TRUE(Holds(found[0], 1));
    torch::autograd::backward({output}, {}, true, false, {input});
    EXPECT_TRUE(net.model->CheckRound().ok());
    EXPECT_EQ(net.model->statistics().rounds, 0U);
    EXPECT_FALSE(net.w.grad().defined());
    torch::autograd::backward({output}, {}, true, false, {net.w});
    EXPECT_EQ(net.model->statistics().rounds, 1U) << "one of the parameters was asked for";
  });
}

TEST(WrappedModelTest, RanksInDifferentModesEndInAnErrorOnBoth) {
  OnNets([](Net& net) {
    const at::Tensor output = net.Loss(1, 1);
    net.model->WatchOutputs({output},
                            net.rank == 0 ? RoundMode::kTraining : RoundMode::kEvaluation);
    EXPECT_THAT(ErrorOf([&] { output.backward(); }), HasSubstr("evaluation"));
    EXPECT_FALSE(net.model->CheckRound().ok());
  });
}

TEST(WrappedModelTest, ALayerThatIsRunAgainWithinBackwardCountsOnceWithAllItsParts) {
  OnNets([](Net& net) {
    const std::function<void()> inner = [&net] { (net.w * (2 * net.mine())).sum().backward(); };
    for (int pass = 0; pass < 3; ++pass) {
      const at::Tensor output = net.Loss(net.mine(), 1) + Call(inner, Input());
      net.model->WatchOutputs({output}, RoundMode::kTraining);
      output.backward();
      EXPECT_TRUE(net.Have(6, 1)) << pass;
      net.ZeroGrad();
    }
    EXPECT_EQ(net.model->statistics().rounds, 3U);
  });
}

TEST(WrappedModelTest, ALayerThatIsRunAgainForTheFirstTimeInALaterRoundIsAnError) {
  OnNets([](Net& net) {
    net.Backward(1, 1);
    net.AwaitOthers();
    net.ZeroGrad();
    const std::function<void()> inner = [&net] { (net.w * 2).sum().backward(); };
    const at::Tensor output = net.Loss(1, 1) + Call(inner, Input());
    net.model->WatchOutputs({output}, RoundMode::kTraining);
    const std::string error = ErrorOf([&] { output.backward(); });
    EXPECT_THAT(error, HasSubstr("of model 'net': a second gradient of it came in one round"));
    EXPECT_THAT(net.model->CheckRound().ToString(), HasSubstr("a second gradient"));
  });
}

TEST(WrappedModelTest, WithoutAWatchedOutputARoundGoesOnAfterAnInnerBackward) {
  OnNets([](Net& net) {
    const std::function<void()> inner = [&net] { (net.w * net.mine()).sum().backward(); };
    const at::Tensor outer = (net.b * net.mine()).sum();
    (outer + Call(inner, Input())).backward();
    EXPECT_TRUE(net.Have(2, 2));
    EXPECT_EQ(net.model->statistics().rounds, 1U);
  });
}

TEST(WrappedModelTest, ARoundThatAnInnerBackwardLeftOpenIsFinishedBeforeTheStep) {
  OnNets([](Net& net) {
    const std::function<void()> inner = [&net] { (net.w * net.mine()).sum().backward(); };
    Call(inner, Input()).backward();
    EXPECT_TRUE(Holds(net.w.grad(), net.mine())) << "\"b\" may come still";
    const absl::StatusOr<bool> posted = net.model->Post({.kind = EventKind::kBeforeStep});
    EXPECT_TRUE(posted.ok()) << posted.status();
    EXPECT_TRUE(Holds(net.w.grad(), 2));
    EXPECT_TRUE(net.model->CheckRound().ok());
    EXPECT_TRUE(net.model->FinishRound().ok()) << "there is none";
  });
}

TEST(WrappedModelTest, AHookThatUsesUpAGradientIsNamed) {
  OnNets([](Net& net) {
    torch::autograd::impl::set_post_acc_grad_hooks(
        net.w, std::make_unique<AfterAccumulation>(
                   [](const at::Tensor& w) { w.mutable_grad() = at::Tensor(); }));
    const std::string error = ErrorOf([&] { net.Backward(1, 1); });
    EXPECT_THAT(error, HasSubstr("parameter 'w' of model 'net': a hook of the backward pass used "
                                 "up its gradient"));
    EXPECT_THAT(net.model->CheckRound().ToString(), HasSubstr("used up its gradient"));
    EXPECT_THAT(net.model->FinishRound().ToString(), HasSubstr("used up its gradient"));
  });
}

TEST(WrappedModelTest, AHookThatStepsBeforeTheMeanIsThereIsNamed) {
  OnNets([](Net& net) {
    net.Backward(1, 1);
    net.AwaitOthers();
    torch::autograd::impl::set_post_acc_grad_hooks(
        net.b, std::make_unique<AfterAccumulation>([](const at::Tensor& b) { b.data().sub_(1); }));
    EXPECT_THAT(ErrorOf([&] { net.Backward(1, 1); }),
                HasSubstr("parameter 'b' of model 'net': a hook of the backward pass changed the "
                          "parameter"));
  });
}

TEST(WrappedModelTest, AHookBehindTheModelsOwnThatStepsIsNamedAtTheEnd) {
  OnNets([](Net& net) {
    const auto accumulator = torch::autograd::impl::grad_accumulator(net.w);
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [&net](const variable_list& outputs, const variable_list&) {
          const at::NoGradGuard no_graph;
          at::Tensor(net.w).sub_(1);
          return outputs;
        }));
    EXPECT_THAT(ErrorOf([&] { net.Backward(1, 1); }),
                HasSubstr("parameter 'w' of model 'net': a hook of the backward pass changed the "
                          "parameter"));
  });
}

TEST(WrappedModelTest, AHookThatOnlyLooksIsNoError) {
  OnNets([](Net& net) {
    double seen = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(
        net.w, std::make_unique<AfterAccumulation>(
                   [&seen](const at::Tensor& w) { seen = w.grad()[0][0].item<double>(); }));
    net.Backward(net.mine(), 1);
    EXPECT_EQ(seen, net.mine()) << "this rank's own";
    EXPECT_TRUE(net.Have(2, 1));
  });
}

TEST(WrappedModelTest, ABackwardThatBreaksOffEndsTheRoundOnAllRanks) {
  OnNets([](Net& net) {
    const std::function<void()> breaks = [] { throw std::runtime_error("out of memory"); };
    if (net.rank == 0) {
      // "w" has its gradient before the pass breaks off on its way to "b".
      const at::Tensor second = Call(breaks, (net.b * 1).sum());
      EXPECT_THROW((second + (net.w * 1).sum()).backward(), std::runtime_error);
      EXPECT_THAT(ErrorOf([&] { net.Backward(1, 1); }), HasSubstr("ended in the middle"));
    } else {
      EXPECT_THAT(ErrorOf([&] { net.Backward(1, 1); }),
                  HasSubstr("rank 0: the last backward of model 'net' ended in the middle"));
    }
    EXPECT_FALSE(net.model->CheckRound().ok());
    EXPECT_FALSE(net.model->Post({.kind = EventKind::kBackwardBegins}).ok());
  });
}

TEST(WrappedModelTest, AnOptimizersStepIsAStep) {
  OnNets([](Net& net) {
    net.Backward(1, 1);
    EXPECT_FALSE(ValueOrThrow(net.model->Post({.kind = EventKind::kBackwardBegins})));
    EXPECT_FALSE(ValueOrThrow(net.model->Post({.kind = EventKind::kBackwardEnds})));
    EXPECT_FALSE(ValueOrThrow(net.model->Post({.kind = EventKind::kBeforeStep})));
    EXPECT_TRUE(ValueOrThrow(net.model->Post({.kind = EventKind::kAfterStep})));
    net.model->SetSynchronized(false);
    EXPECT_FALSE(ValueOrThrow(net.model->Post({.kind = EventKind::kAfterStep})));
  });
}

TEST(WrappedModelTest, AFlatBucketIsWhereTheGradientsLie) {
  OnNets([](Net& net) {
    net.Backward(net.mine(), 10 * net.mine());
    const std::vector<WrappedModel::FlatGradients> buckets = net.model->FlatBuckets();
    ASSERT_EQ(buckets.size(), 1U);
    const auto& [flat, slots] = buckets[0];
    ASSERT_EQ(slots.size(), 2U);
    for (const auto& [name, begin] : slots) {
      const at::Tensor& parameter = name == "w" ? net.w : net.b;
      const auto first = static_cast<int64_t>(begin);
      const at::Tensor part = flat.slice(0, first, first + parameter.numel());
      EXPECT_TRUE(Holds(part, name == "w" ? 2 : 20));
      flat[first] = 77;
      EXPECT_EQ(parameter.grad().flatten()[0].item<double>(), 77) << name;
    }
  });
}

TEST(WrappedModelTest, WhatIsCopiedIntoBucketsIsCounted) {
  OnNets([](Net& net) {
    constexpr uint64_t kBytes = 9 * sizeof(float);
    net.Backward(1, 1);
    EXPECT_EQ(net.model->statistics().bytes, kBytes);
    const uint64_t first = net.model->statistics().copied_bytes;  // and the buckets have moved
    net.Backward(1, 1);
    EXPECT_EQ(net.model->statistics().copied_bytes, first) << "gradients lie there already";
    net.ZeroGrad();
    net.Backward(1, 1);
    EXPECT_EQ(net.model->statistics().copied_bytes, first + kBytes);
    EXPECT_EQ(net.model->statistics().bytes, 3 * kBytes);
  });
}

TEST(WrappedModelTest, AfterDetachGradientsStayAndBackwardIsLocal) {
  OnNets([](Net& net) {
    net.Backward(net.mine(), 10);
    const at::Tensor kept = net.w.grad();
    net.model->WatchOutputs({}, RoundMode::kTraining);
    const at::Tensor output = net.Loss(net.mine(), 1);
    net.model->WatchOutputs({output}, RoundMode::kTraining);
    net.model->Detach(absl::Seconds(10));
    EXPECT_TRUE(Holds(kept, 2));
    EXPECT_TRUE(kept.is_same(net.w.grad()));
    net.ZeroGrad();
    output.backward();
    EXPECT_TRUE(net.Have(net.mine(), 1)) << "a graph of before is nobody's round";
    EXPECT_THAT(net.model->Buckets(), IsEmpty());
    EXPECT_THAT(net.model->FlatBuckets(), IsEmpty());
    EXPECT_EQ(net.model->statistics().rounds, 0U);
    EXPECT_THAT(net.model->Tune("").ToString(),
                HasSubstr("FAILED_PRECONDITION: autotune: model 'net' was detached"));
    EXPECT_FALSE(net.model->is_tuning());
    net.model->EndTuning();
    net.model->Detach(absl::Seconds(10));
    EXPECT_TRUE(net.model->CheckRound().ok());
  });
}

TEST(WrappedModelTest, TuningLastsUntilItIsEnded) {
  OnNets([](Net& net) {
    EXPECT_FALSE(net.model->is_tuning());
    EXPECT_TRUE(net.model->Tune("").ok());
    EXPECT_TRUE(net.model->is_tuning());
    net.Backward(net.mine(), 1);
    EXPECT_TRUE(net.Have(2, 1));
    net.model->EndTuning();
    EXPECT_FALSE(net.model->is_tuning());
  });
}

TEST(WrappedModelTest, AParameterThatIsNoLongerWhatWasRegisteredIsNamed) {
  OnNets([](Net& net) {
    EXPECT_THAT(net.model->Changes(), IsEmpty());
    at::Tensor(net.b).set_data(torch::ones({3}, at::kDouble));
    EXPECT_THAT(net.model->Changes(), ElementsAre("b: dtype was Float, is Double"));
  });
}

TEST(WrappedModelTest, ItsFingerprintChangesWithEachParameter) {
  OnNets([](Net& net) {
    const uint64_t before = net.model->Fingerprint();
    EXPECT_EQ(net.model->Fingerprint(), before);
    const at::NoGradGuard no_graph;
    at::Tensor(net.b).add_(1);
    const uint64_t between = net.model->Fingerprint();
    EXPECT_NE(between, before);
    at::Tensor(net.w).add_(1);
    EXPECT_NE(net.model->Fingerprint(), between);
  });
}

// Of an algorithm that communicates what an optimizer keeps of the gradients.
TEST(WrappedModelTest, MomentaTravelAndGradientsAreWhatTheyMakeOfTheirMean) {
  OnRanks(2, [](const SharedBackend& backend) {
    const std::vector<Moment> moments = {{torch::full({2, 3}, 4.0F), 0.5},
                                         {torch::zeros({3}), 0.75}};
    Net net(OptionsOf(backend, "qadam"), backend, moments);
    net.Backward(net.mine(), 10 * net.mine());
    EXPECT_TRUE(torch::allclose(net.w.grad(), torch::full({2, 3}, 2.0F), 0.01)) << net.w.grad();
    EXPECT_TRUE(torch::allclose(net.b.grad(), torch::full({3}, 20.0F), 0.01)) << net.b.grad();
    EXPECT_TRUE(Holds(moments[0].tensor, 4)) << "only the optimizer changes it";
    EXPECT_THAT(net.model->FlatBuckets(), IsEmpty()) << "no gradient lies there";
    EXPECT_EQ(net.model->SetBetas({0.5}),
              absl::InvalidArgumentError("betas: 1 of them for 2 momenta"));
    EXPECT_TRUE(net.model->SetBetas({0.25, 0.875}).ok());
    net.ZeroGrad();
    net.Backward(net.mine(), 10 * net.mine());
    EXPECT_TRUE(torch::allclose(net.w.grad(), torch::full({2, 3}, 2.0F), 0.01)) << net.w.grad();
    EXPECT_TRUE(torch::allclose(net.b.grad(), torch::full({3}, 20.0F), 0.01)) << net.b.grad();
  });
}

TEST(WrappedModelTest, MomentsThatDoNotFitAreRefused) {
  OnRanks(1, [](const SharedBackend& backend) {
    const auto error_of = [&](const std::string& algorithm, const std::vector<Moment>& moments) {
      return ErrorOf([&] { const Net net(OptionsOf(backend, algorithm), backend, moments); });
    };
    const Moment of_w = {torch::zeros({2, 3}), 0.9};
    const Moment of_b = {torch::zeros({3}), 0.9};
    EXPECT_EQ(error_of("qadam", {of_w}), "INVALID_ARGUMENT: moments: 1 of them for 2 parameters");
    EXPECT_EQ(error_of("qadam", {}), "INVALID_ARGUMENT: moments: 0 of them for 2 parameters");
    EXPECT_EQ(error_of("qadam", {of_w, of_w}),
              "INVALID_ARGUMENT: moments: that of 'b' does not have its shape");
    for (const std::string algorithm : {"gradient_allreduce", "decentralized"}) {
      EXPECT_EQ(error_of(algorithm, {of_w, of_b, of_b}),
                "INVALID_ARGUMENT: algorithm " + algorithm + " does not communicate momenta");
    }
    EXPECT_EQ(error_of("qadam", {of_w, of_b}), "none");
  });
}

TEST(WrappedModelTest, AModelWithoutParametersIsRefused) {
  OnRanks(1, [](const SharedBackend& backend) {
    EXPECT_EQ(WrappedModel::Create(backend, OptionsOf(backend), {}).status(),
              absl::InvalidArgumentError("parameters: none of them requires a gradient"));
  });
}

TEST(WrappedModelTest, WeightsAreAveragedBetweenTheTrainersEvents) {
  OnRanks(2, [](const SharedBackend& backend) {
    PortOptions options = OptionsOf(backend, "decentralized", {{"peer_selection_mode", "all"}});
    Net net(options, backend);
    const auto post = [&](EventKind kind) { return ValueOrThrow(net.model->Post({.kind = kind})); };
    const at::NoGradGuard no_graph;
    at::Tensor(net.w).fill_(net.mine());
    net.model->SetSynchronized(false);
    post(EventKind::kForwardBegins);
    post(EventKind::kBackwardEnds);
    EXPECT_TRUE(Holds(net.w.detach(), net.mine())) << "in no_sync nothing is communicated";
    net.model->SetSynchronized(true);
    post(EventKind::kForwardBegins);
    EXPECT_TRUE(net.model->port().is_open());
    post(EventKind::kBackwardEnds);
    EXPECT_TRUE(Holds(net.w.detach(), 2));
    EXPECT_FALSE(post(EventKind::kBeforeStep));
    EXPECT_TRUE(post(EventKind::kAfterStep));
    EXPECT_EQ(net.model->SetBetas({}), absl::OkStatus());
    EXPECT_THAT(net.model->FlatBuckets(), IsEmpty());
    EXPECT_EQ(net.model->statistics().rounds, 1U);
    const ModelState state = ValueOrThrow(net.model->State());
    EXPECT_EQ(state.rounds, 1U);
  });
}

TEST(WrappedModelTest, AForwardThatIsComputedAgainWithinBackwardBeginsNoIteration) {
  OnRanks(2, [](const SharedBackend& backend) {
    PortOptions options = OptionsOf(backend, "decentralized", {{"peer_selection_mode", "all"}});
    Net net(options, backend);
    const std::function<void()> again = [&net] {
      EXPECT_TRUE(net.model->Post({.kind = EventKind::kForwardBegins}).ok());
      EXPECT_FALSE(net.model->port().is_open());
    };
    Call(again, Input()).backward();
  });
}

}  // namespace
}  // namespace pelton::torch_bindings
