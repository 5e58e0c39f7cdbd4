// When a backward pass begins and ends, also where passes nest, fail or go on with others.
#include "torch_bindings/csrc/backward_watch.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor Parameter() { return torch::ones({2}).set_requires_grad(true); }

// Identity, whose gradient is zeros after `inner` has run: what a checkpointed block does, which
// computes its parameters' gradients in a backward of its own.
class WithInner : public torch::autograd::Function<WithInner> {
 public:
  static std::function<void()> inner;

  static at::Tensor forward(AutogradContext*, const at::Tensor& input) { return input.clone(); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    const c10::AutoGradMode enabled(true);
    inner();
    return {at::zeros_like(gradients.front())};
  }
};
std::function<void()> WithInner::inner;

// A watch of two parameters that writes down what it sees.
// Threads: one. Owns: the parameters, the watch.
class BackwardWatchTest : public ::testing::Test {
 protected:
  BackwardWatchTest() : watch_(BackwardWatch::Create({first_, second_}, Noting())) {}

  BackwardWatch::Callbacks Noting() {
    return {.began = [this] { Note("began"); },
            .ends = [this] { Note("ends"); },
            .ended = [this](bool may_go_on) { Note(may_go_on ? "ended for now" : "ended"); }};
  }
  void Note(const std::string& what) { seen_.push_back(what); }
  std::vector<std::string> Seen() { return std::exchange(seen_, {}); }

  at::Tensor Loss() const { return (first_ * second_).sum(); }
  // One whose gradients are made by an inner backward, of which the engine's own one knows nothing.
  at::Tensor LossOfInner() {
    WithInner::inner = [this] { Loss().backward(); };
    return WithInner::apply(torch::ones({2}).set_requires_grad(true)).sum();
  }

  const at::Tensor first_ = Parameter();
  const at::Tensor second_ = Parameter();
  std::vector<std::string> seen_;
  std::shared_ptr<BackwardWatch> watch_;
};

TEST_F(BackwardWatchTest, APassBeginsWithItsFirstGradientAndEndsOnce) {
  Loss().backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended"));
  first_.sum().backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended")) << "one of the parameters is enough";
  Parameter().sum().backward();
  EXPECT_THAT(Seen(), IsEmpty()) << "of somebody else's parameter";
}

TEST_F(BackwardWatchTest, BeginsBeforeHooksThatWereAddedLater) {
  const auto accumulator = torch::autograd::impl::grad_accumulator(first_);
  BackwardWatch::Callbacks later = Noting();
  later.began = [this] { Note("a later hook"); };
  const auto other = BackwardWatch::Create({first_, second_}, std::move(later));
  Loss().backward();
  const std::vector<std::string> seen = Seen();
  ASSERT_GE(seen.size(), 2U);
  EXPECT_EQ(seen[0], "began");
  EXPECT_EQ(seen[1], "a later hook");
}

TEST_F(BackwardWatchTest, GradientsThatAreNotAccumulatedAreNoPass) {
  torch::autograd::grad({Loss()}, {first_, second_});
  EXPECT_THAT(Seen(), IsEmpty());
}

TEST_F(BackwardWatchTest, AGraphThatIsKeptMayBeGoneThroughOnceMore) {
  const at::Tensor loss = Loss();
  loss.backward({}, /*keep_graph=*/true);
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended for now"));
  loss.backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended"));
}

TEST_F(BackwardWatchTest, AnOutputThatLivesMayBringAnotherPass) {
  at::Tensor one = Loss();
  at::Tensor other = Loss();
  at::Tensor dropped = Loss();
  for (const at::Tensor& output : {one, other, dropped}) watch_->WatchOutputs({output});
  dropped = at::Tensor();
  one.backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended for now"));
  other.backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended")) << "nobody has the third one";
}

// Of one forward pass: whether its other outputs are used is the user's affair.
TEST_F(BackwardWatchTest, AForwardPassIsReachedByAnyOfItsOutputs) {
  const at::Tensor used = Loss();
  const at::Tensor unused = Loss();
  watch_->WatchOutputs({used, unused});
  used.backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended"));
}

TEST_F(BackwardWatchTest, AForwardPassWithinABackwardIsNoneToWaitFor) {
  at::Tensor kept;
  first_.register_hook([&](const at::Tensor&) {
    const c10::AutoGradMode enabled(true);
    kept = Loss();
    watch_->WatchOutputs({kept});
  });
  Loss().backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended"));
}

TEST_F(BackwardWatchTest, APassWhoseGradientsComeFromInnerOnesEndsWithTheOutermost) {
  const at::Tensor loss = LossOfInner();
  watch_->WatchOutputs({loss});
  loss.backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended"));
  watch_->Settle();
  EXPECT_THAT(Seen(), IsEmpty());
}

TEST_F(BackwardWatchTest, SeveralInnerPassesAreOne) {
  const at::Tensor block = WithInner::apply(LossOfInner().expand({2}));
  block.sum().backward();
  const std::vector<std::string> seen = Seen();
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "began"), 1);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "ended"), 0) << "the outermost may bring more";
  watch_->Settle();
  EXPECT_THAT(Seen(), ElementsAre("ended"));
  watch_->Settle();
  EXPECT_THAT(Seen(), IsEmpty());
}

TEST_F(BackwardWatchTest, AfterAFailureTheNextPassBeginsAnew) {
  // The product's gradient comes first, and the sum's function fails after it.
  WithInner::inner = [] { throw std::runtime_error("the user's error"); };
  const auto fails = WithInner::apply(torch::ones({2}).set_requires_grad(true)).sum();
  EXPECT_THROW((fails + Loss()).backward(), std::runtime_error);
  const std::vector<std::string> failed = Seen();
  EXPECT_EQ(std::count(failed.begin(), failed.end(), "ended"), 0);
  watch_->Settle();
  EXPECT_THAT(Seen(), IsEmpty()) << "it has failed";
  Loss().backward();
  EXPECT_THAT(Seen(), ElementsAre("began", "ends", "ended"));
}

TEST_F(BackwardWatchTest, WhatACallbackThrowsLeavesTheBackward) {
  BackwardWatch::Callbacks throwing = Noting();
  throwing.began = [] { throw std::runtime_error("refused"); };
  watch_ = BackwardWatch::Create({first_, second_}, std::move(throwing));
  EXPECT_THROW(Loss().backward(), std::runtime_error);
  EXPECT_THAT(Seen(), IsEmpty());

  throwing = Noting();
  throwing.ends = [] { throw std::runtime_error("refused"); };
  watch_ = BackwardWatch::Create({first_, second_}, std::move(throwing));
  EXPECT_THROW(Loss().backward(), std::runtime_error);
  EXPECT_THAT(Seen(), ElementsAre("began")) << "the rest is dropped";
}

TEST_F(BackwardWatchTest, WithoutItsHooksItSeesNothing) {
  watch_->Detach();
  watch_->Detach();
  Loss().backward();
  EXPECT_THAT(Seen(), IsEmpty());
}

TEST_F(BackwardWatchTest, OutputsMayOutliveIt) {
  const at::Tensor loss = Loss();
  watch_->WatchOutputs({loss});
  watch_.reset();
  loss.backward();
  EXPECT_THAT(Seen(), IsEmpty());
}

TEST_F(BackwardWatchTest, StagesOfTheEndRunInTheirOrderWhoeverAskedFirst) {
  const auto note = [this](const char* what) { return [this, what] { Note(what); }; };
  BackwardWatch::Callbacks asking = Noting();
  asking.began = [&] {
    QueueAtEnd(EndStage::kAfter, note("after"));
    QueueAtEnd(EndStage::kWait, note("wait"));
    QueueAtEnd(EndStage::kLaunch, note("launch"));
    QueueAtEnd(EndStage::kAdopt, note("adopt"));
    QueueAtEnd(EndStage::kWait, note("wait for another"));
    QueueAtEnd(EndStage::kSettle, note("settle"));
    QueueAtEnd(EndStage::kLaunch, note("launch another"));
  };
  asking.ends = nullptr;
  watch_ = BackwardWatch::Create({first_, second_}, std::move(asking));
  Loss().backward();
  EXPECT_THAT(Seen(), ElementsAre("launch", "launch another", "settle", "wait", "wait for another",
                                  "adopt", "ended", "after"));
}

}  // namespace
}  // namespace pelton::torch_bindings
