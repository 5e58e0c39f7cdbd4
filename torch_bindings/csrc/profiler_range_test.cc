// What a profiler is shown of ranges that begin on one thread and end on another.
#include "torch_bindings/csrc/profiler_range.h"

#include <ATen/record_function.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What a profiler was shown, in order. The callbacks of PyTorch's are plain functions.
std::vector<std::string>& Shown() {
  static std::vector<std::string> shown;
  return shown;
}

std::unique_ptr<at::ObserverContext> OnBegin(const at::RecordFunction& function) {
  std::string text = std::string("begin ") + function.name();
  for (const c10::IValue& input : function.inputs()) {
    for (const int64_t size : input.toTensor().sizes()) text += " " + std::to_string(size);
  }
  Shown().push_back(text);
  return nullptr;
}

void OnEnd(const at::RecordFunction& function, at::ObserverContext*) {
  Shown().push_back(std::string("end ") + function.name());
}

// A profiler of the thread that makes it. Threads: one. Owns: its place among the callbacks.
class Profiler {
 public:
  Profiler()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&OnBegin, &OnEnd)
                                               .needsInputs(true)
                                               .scopes({at::RecordScope::USER_SCOPE}))) {
    Shown().clear();
  }
  ~Profiler() { at::removeCallback(handle_); }
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

 private:
  const at::CallbackHandle handle_;
};

void OnAnotherThread(const std::function<void()>& body) { std::thread(body).join(); }

TEST(ProfilerRangeTest, WithoutAProfilerThereIsNothingToEnd) {
  EXPECT_FALSE(IsProfiled());
  EXPECT_EQ(BeginProfilerRange("round"), nullptr);
}

TEST(ProfilerRangeTest, ARangeHasItsNameAndShapesAndMayEndOnAnotherThread) {
  const Profiler profiler;
  EXPECT_TRUE(IsProfiled());
  absl::AnyInvocable<void()> end;
  {
    std::string name = "a name that is too long to lie within the string itself";
    end = BeginProfilerRange(std::move(name), {torch::zeros({2, 3}), torch::zeros({5})});
    name = "another text in the place of the first one, which is as long";
  }
  ASSERT_NE(end, nullptr);
  const std::string shown = "a name that is too long to lie within the string itself";
  EXPECT_THAT(Shown(), ElementsAre("begin " + shown + " 2 3 5")) << "it goes on";
  OnAnotherThread([&] { end(); });
  EXPECT_THAT(Shown(), ElementsAre("begin " + shown + " 2 3 5", "end " + shown));
}

TEST(ProfilerRangeTest, ARangeThatIsDroppedHasEnded) {
  const Profiler profiler;
  BeginProfilerRange("dropped");
  EXPECT_THAT(Shown(), ElementsAre("begin dropped", "end dropped"));
}

TEST(ProfiledRoundsTest, WhatOtherThreadsDoForARoundIsTheTrainers) {
  const Profiler profiler;
  ProfiledRounds rounds;
  EXPECT_FALSE(rounds.is_looking());
  rounds.Follow();
  OnAnotherThread([&] {
    EXPECT_FALSE(IsProfiled()) << "this thread is not the profiler's";
    EXPECT_TRUE(rounds.is_looking());
    absl::AnyInvocable<void()> end = rounds.Begin("bucket 0");
    ASSERT_NE(end, nullptr);
    EXPECT_FALSE(IsProfiled()) << "the trainer's state is this thread's no longer";
    end();
    EXPECT_FALSE(IsProfiled());
  });
  EXPECT_THAT(Shown(), ElementsAre("begin bucket 0", "end bucket 0"));
}

TEST(ProfiledRoundsTest, AfterLeaveNothingIsShown) {
  const Profiler profiler;
  ProfiledRounds rounds;
  rounds.Follow();
  rounds.Leave();
  EXPECT_FALSE(rounds.is_looking());
  OnAnotherThread([&] { EXPECT_EQ(rounds.Begin("bucket 0"), nullptr); });
  EXPECT_THAT(Shown(), IsEmpty());
}

TEST(ProfiledRoundsTest, ATrainerWhoseProfilerHasEndedIsFollowedNoLonger) {
  ProfiledRounds rounds;
  {
    const Profiler profiler;
    rounds.Follow();
    EXPECT_TRUE(rounds.is_looking());
  }
  rounds.Follow();
  EXPECT_FALSE(rounds.is_looking());
  OnAnotherThread([&] { EXPECT_EQ(rounds.Begin("bucket 0"), nullptr); });
}

}  // namespace
}  // namespace pelton::torch_bindings
