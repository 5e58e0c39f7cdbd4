// Which memory a call on a process group works on, how long it stays, and what is refused.
#include "torch_bindings/csrc/c10d/call.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/Float8_e5m2.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/lane/job.h"
#include "comm/transport/sim/sim_fabric.h"
#include "core/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_errors.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Use = Call::Use;

std::vector<float> ElementsOf(const Tensor& tensor) {
  const auto* const first = static_cast<const float*>(tensor.data);
  return {first, first + tensor.count};
}
void Fill(const Tensor& tensor, float value) {
  std::fill_n(static_cast<float*>(tensor.data), tensor.count, value);
}
void Finish(Call& call) { call.Take(absl::Minutes(1)).finish(); }

// A launch that found no room is called again.
TEST(CallTest, ACollectiveMayBeLaunchedMoreThanOnce) {
  SimFabric fabric{WorldSize(1)};
  const auto alone = fabric.OpenAll(CommunicatorId(3), Group::World(WorldSize(1))).value();
  std::vector<float> from = {1, 2};
  std::vector<float> to(2);
  lane::Job::Launch launch = LaunchOf({.kind = OperationKind::kAllReduce,
                                       .source = {from.data(), from.size()},
                                       .target = {to.data(), to.size()}},
                                      std::nullopt);
  for (int i = 0; i < 2; ++i) {
    from[0] += 1;
    const Completion launched = launch(*alone[0]).value();
    while (!alone[0]->Query(launched).done) alone[0]->Progress();
    EXPECT_EQ(to, from);
  }
}

TEST(CallTest, WorksInTheMemoryOfContiguousTensors) {
  const at::Tensor target = torch::zeros({2, 3});
  const at::Tensor source = torch::ones({2, 3});
  Call call("all_reduce", Use::kReduced);
  EXPECT_EQ(call.Writes(target, "output").data, target.data_ptr());
  EXPECT_EQ(call.Reads(source, "input").data, source.data_ptr());
  EXPECT_EQ(call.Updates(source, "input").data, source.data_ptr());
}

TEST(CallTest, UnpacksWhatIsNotContiguousInTheEnd) {
  const at::Tensor whole = torch::zeros({3, 4});
  const at::Tensor target = whole.slice(1, 1, 3);
  Call call("broadcast", Use::kMoved);
  const Tensor packed = call.Writes(target, "tensor");
  ASSERT_EQ(packed.count, 6U);
  for (int i = 0; i < 6; ++i) static_cast<float*>(packed.data)[i] = static_cast<float>(i + 1);
  EXPECT_EQ(whole.sum().item<float>(), 0) << "the operation may yet fail";

  Finish(call);

  EXPECT_TRUE(whole.equal(torch::tensor({{0, 1, 2, 0}, {0, 3, 4, 0}, {0, 5, 6, 0}}, at::kFloat)));
}

TEST(CallTest, UpdatesBeginWithWhatATensorHoldsInTheOrderOfItsElements) {
  const at::Tensor tensor = torch::arange(6, at::kFloat).reshape({2, 3}).t();
  Call call("all_reduce", Use::kReduced);
  EXPECT_THAT(ElementsOf(call.Updates(tensor, "tensor")), ElementsAre(0, 3, 1, 4, 2, 5));
}

TEST(CallTest, ReadsACopyOfWhatItWrites) {
  const at::Tensor whole = torch::arange(8, at::kFloat);
  Call call("all_gather", Use::kMoved);
  const Tensor target = call.Writes(whole.slice(0, 0, 4), "output");
  const Tensor beside = call.Reads(whole.slice(0, 4, 8), "input");
  const Tensor across = call.Reads(whole.slice(0, 3, 5), "input");

  Fill(target, 100);

  EXPECT_EQ(beside.data, whole.slice(0, 4).data_ptr()) << "nothing of it is written";
  EXPECT_THAT(ElementsOf(across), ElementsAre(3, 4));
}

// Its span has elements of others in between, and only a copy is right for all of them.
TEST(CallTest, ReadsACopyOfAColumnBesideTheColumnThatItWrites) {
  const at::Tensor whole = torch::arange(6, at::kFloat).reshape({3, 2});
  Call call("all_to_all", Use::kMoved);
  call.Writes(whole.select(1, 0), "output");
  const Tensor last = call.Reads(whole.slice(0, 2, 3), "input");
  EXPECT_NE(last.data, whole.slice(0, 2, 3).data_ptr());
  EXPECT_THAT(ElementsOf(last), ElementsAre(4, 5));
}

TEST(CallTest, ConjugatedAndNegatedViewsAreMovedByTheirValues) {
  using Complex = c10::complex<float>;
  const at::Tensor base = torch::full({2}, Complex(1, 2), at::kComplexFloat);
  Call call("broadcast", Use::kMoved);
  const Tensor sent = call.Reads(base.conj(), "tensor");
  EXPECT_EQ(static_cast<const Complex*>(sent.data)[1], Complex(1, -2));
  const Tensor negated = call.Reads(at::imag(base.conj()), "tensor");
  EXPECT_EQ(static_cast<const float*>(negated.data)[1], -2.0F);

  const Tensor received = call.Writes(base.conj(), "tensor");
  std::fill_n(static_cast<Complex*>(received.data), 2, Complex(5, 7));
  Finish(call);
  EXPECT_EQ(base[1].item<Complex>(), Complex(5, -7)) << "its conjugate is what was received";
}

TEST(CallTest, MovesTypesThatNoReductionKnowsAsBytes) {
  const at::Tensor tensor = torch::zeros({3}).to(at::kFloat8_e5m2);
  Call moved("send", Use::kMoved);
  const Tensor bytes = moved.Reads(tensor, "tensor");
  EXPECT_EQ(bytes.dtype, DType::kUInt8);
  EXPECT_EQ(bytes.count, 3U);
  Call reduced("all_reduce", Use::kReduced);
  EXPECT_EQ(ErrorOf([&] { reduced.Reads(tensor, "input"); }),
            "INVALID_ARGUMENT: all_reduce: input: dtype: Float8_e5m2 cannot be communicated");
}

TEST(CallTest, ARefusalNamesTheOperationAndTheArgument) {
  Call call("gather", Use::kMoved);
  EXPECT_EQ(ErrorOf([&] { call.Reads(at::Tensor(), "input"); }),
            "INVALID_ARGUMENT: gather: input: None");
  EXPECT_THAT(ErrorOf([&] {
                call.Writes(torch::zeros({2, 2}).to_sparse(), "output");
              }),
              HasSubstr("gather: output: a sparse tensor cannot be communicated; call to_dense()"));
  // Neither has bytes that could be moved here, whatever its type.
  for (const at::ScalarType type : {at::kFloat, at::kFloat8_e5m2}) {
    const at::Tensor elsewhere = torch::empty({2}, torch::dtype(type).device(at::kMeta));
    EXPECT_THAT(ErrorOf([&] { call.Reads(elsewhere, "input"); }),
                HasSubstr("gather: input: is on meta; only CPU tensors are served here"));
  }
}

TEST(CallTest, KeepsItsTensorsUntilTheJobDies) {
  const auto freed = std::make_shared<int>(0);
  const auto make = [&freed](std::vector<float>& memory) {
    return torch::from_blob(
        memory.data(), {4}, [freed](void*) { ++*freed; }, at::kFloat);
  };
  std::vector<float> first(4);
  std::vector<float> second(4);
  std::optional<lane::Job> job;
  {
    Call call("reduce_scatter", Use::kReduced);
    call.Writes(make(first), "output");
    call.Reads(make(second), "input");
    job = call.Take(absl::Minutes(1));
  }
  EXPECT_EQ(*freed, 0) << "the wire would write into memory that is somebody else's";
  job.reset();
  EXPECT_EQ(*freed, 2);
}

// What the caller has only a view of, or not even that any more.
TEST(CallTest, CopiesIntoATargetThatItsCallerHasLetGo) {
  std::vector<float> memory(6, 0);
  const at::Tensor whole = torch::from_blob(memory.data(), {2, 3}, at::kFloat);
  Call call("recv", Use::kMoved);
  Fill(call.Writes(whole.t(), "tensor"), 3);
  Finish(call);
  EXPECT_THAT(memory, ::testing::Each(3));
}

TEST(CallTest, WritesTensorsOfInferenceModeOutsideOfIt) {
  at::Tensor target;
  {
    const c10::InferenceMode inference;
    target = torch::zeros({2, 3}).t();
  }
  Call call("broadcast", Use::kMoved);
  Fill(call.Writes(target, "tensor"), 4);
  Finish(call);
  EXPECT_TRUE(target.equal(torch::full({3, 2}, 4.0F)));
}

TEST(CallTest, AParameterGetsItsResultWithoutAGraph) {
  const at::Tensor whole = torch::zeros({2, 3}).set_requires_grad(true);
  const at::Tensor parameter = whole.t();
  Call call("all_reduce", Use::kReduced);
  const Tensor packed = call.Updates(parameter, "tensor");
  Fill(packed, 2);
  const at::Tensor scratch = call.Scratch(5, parameter);
  EXPECT_FALSE(scratch.requires_grad());
  EXPECT_EQ(scratch.sizes(), at::IntArrayRef({5}));
  Finish(call);
  EXPECT_TRUE(whole.detach().equal(torch::full({2, 3}, 2.0F)));
  EXPECT_TRUE(whole.is_leaf());
}

TEST(CallTest, TheLastStepFindsWhatWasCopied) {
  const at::Tensor target = torch::zeros({2, 3}).t();
  Call call("all_gather", Use::kMoved);
  Fill(call.Writes(target, "output"), 6);
  float found = 0;
  call.Finally([&found, target] { found = target[2][1].item<float>(); });
  Finish(call);
  EXPECT_EQ(found, 6);
}

TEST(CallTest, OnlyASmallCopyIsMadeByWhoeverDrives) {
  const auto lasts = [](int64_t count, bool is_packed, bool last_lasts) {
    const at::Tensor pairs = torch::zeros({count, 2});
    Call call("recv", Use::kMoved);
    call.Writes(is_packed ? pairs.flatten() : pairs.select(1, 0), "tensor");
    call.Finally([] {}, last_lasts);
    return call.Take(absl::Minutes(1)).finish_lasts;
  };
  EXPECT_FALSE(lasts(1 << 16, /*is_packed=*/false, /*last_lasts=*/false)) << "256 KiB";
  EXPECT_TRUE(lasts((1 << 16) + 1, false, false));
  EXPECT_FALSE(lasts(1 << 20, /*is_packed=*/true, false)) << "there is nothing to copy";
  EXPECT_TRUE(lasts(1, true, /*last_lasts=*/true));
}

TEST(CallTest, ItsDeadlineIsItsTimeoutFromNow) {
  Call call("barrier", Use::kMoved);
  const absl::Time before = Clock::Real().Now();
  const lane::Job job = call.Take(absl::Seconds(40));
  EXPECT_GE(job.deadline, before + absl::Seconds(40));
  EXPECT_LE(job.deadline, Clock::Real().Now() + absl::Seconds(40));
  EXPECT_EQ(job.timeout, absl::Seconds(40));
  EXPECT_EQ(job.name, "barrier");
}

}  // namespace
}  // namespace pelton::torch_bindings
