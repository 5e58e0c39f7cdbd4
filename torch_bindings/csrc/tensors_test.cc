// What becomes of PyTorch's devices, types, memory and models on their way to the runtime.
#include "torch_bindings/csrc/tensors.h"

#include <torch/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/memory/device_queue.h"
#include "core/memory/dtype.h"
#include "core/memory/region.h"
#include "core/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const absl::StatusOr<Tensor>& tensor) { return tensor.status().ToString(); }

TEST(TensorsTest, TheHostAndGpusAreDevicesAndOthersAreRefusedByName) {
  EXPECT_EQ(*ToDevice(at::kCPU, "it"), Device{});
  EXPECT_EQ(*ToDevice(at::Device(at::kCUDA, 3), "it"), (Device{DeviceKind::kCuda, 3}));
  EXPECT_EQ(*ToDevice(at::Device(at::kPrivateUse1, 1), "it"), (Device{DeviceKind::kCuda, 1}));
  EXPECT_EQ(ToDevice(at::kMeta, "parameter 'w'").status(),
            absl::InvalidArgumentError(
                "parameter 'w' is on meta; tensors of the CPU and of GPUs are served"));
}

TEST(TensorsTest, EveryTypeComesBackAndKeepsItsSize) {
  for (const at::ScalarType type :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kChar, at::kShort,
        at::kInt, at::kLong, at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    const absl::StatusOr<DType> dtype = ToDType(type);
    ASSERT_TRUE(dtype.ok()) << dtype.status();
    EXPECT_EQ(ToScalarType(*dtype), type);
    EXPECT_EQ(SizeOf(*dtype), c10::elementSize(type)) << c10::toString(type);
  }
  EXPECT_EQ(ToDType(at::kFloat8_e4m3fn).status(),
            absl::InvalidArgumentError("dtype: Float8_e4m3fn cannot be communicated"));
}

TEST(TensorsTest, AFlatTensorIsTheMemoryFromItsOwnFirstElementOn) {
  const at::Tensor whole = torch::arange(12, at::kInt).view({4, 3});
  const at::Tensor rows = whole.narrow(0, 1, 2);
  const absl::StatusOr<Tensor> flat = Flat(rows, "tensor");
  ASSERT_TRUE(flat.ok()) << flat.status();
  EXPECT_EQ(flat->count, 6U);
  EXPECT_EQ(flat->dtype, DType::kInt32);
  EXPECT_EQ(*static_cast<int32_t*>(flat->data), 3);
}

TEST(TensorsTest, WhatIsNoFlatMemoryIsRefusedWithTheArgumentsName) {
  const at::Tensor matrix = torch::zeros({2, 3});
  EXPECT_EQ(ErrorOf(Flat(at::Tensor(), "send_tensor")), "INVALID_ARGUMENT: send_tensor: None");
  EXPECT_EQ(ErrorOf(Flat(matrix.to_sparse(), "tensor")),
            "INVALID_ARGUMENT: tensor: a sparse tensor cannot be communicated; call to_dense() "
            "first");
  EXPECT_EQ(ErrorOf(Flat(matrix.t(), "recv_tensor")),
            "INVALID_ARGUMENT: recv_tensor: is not contiguous; call this with a copy, that of "
            "contiguous(), and where something is written to that, copy_() it back into the "
            "tensor");
  EXPECT_EQ(ErrorOf(Flat(matrix.to(at::kFloat8_e4m3fn), "tensor")),
            "INVALID_ARGUMENT: tensor: dtype: Float8_e4m3fn cannot be communicated");
}

TEST(TensorsTest, AViewWhoseMemoryHoldsOtherValuesIsRefused) {
  const at::Tensor numbers = torch::ones({2}, at::kComplexFloat);
  EXPECT_THAT(ErrorOf(FlatAnywhere(numbers.conj(), "tensor")),
              HasSubstr("tensor: is a view that PyTorch negates or conjugates"));
  const at::Tensor negated = torch::_neg_view(torch::ones({2}));
  EXPECT_THAT(ErrorOf(FlatAnywhere(negated, "tensor")),
              HasSubstr("with a copy, that of resolve_conj().resolve_neg(), and where something"));
  EXPECT_TRUE(FlatAnywhere(numbers.conj().resolve_conj(), "tensor").ok());
  EXPECT_TRUE(FlatAnywhere(negated.resolve_neg(), "tensor").ok());
}

TEST(TensorsTest, OnlyTheHostsTensorsAreFlatOnTheHost) {
  const at::Tensor elsewhere = torch::empty({2}, at::kMeta);
  EXPECT_EQ(ErrorOf(Flat(elsewhere, "target")),
            "INVALID_ARGUMENT: target: is on meta; only CPU tensors are served here");
  EXPECT_TRUE(FlatAnywhere(elsewhere, "target").ok());
}

TEST(TensorsTest, ASharedTensorLiesWhereTheRanksOfAHostReachItAndGivesItsMemoryBack) {
  const void* first = nullptr;
  {
    const at::Tensor shared = EmptyShared({3, 5}, at::kDouble);
    EXPECT_EQ(shared.sizes(), at::IntArrayRef({3, 5}));
    EXPECT_EQ(shared.scalar_type(), at::kDouble);
    first = shared.data_ptr();
    EXPECT_NE(Locate(shared.data_ptr(), shared.nbytes()).region, kPrivateRegion);
  }
  const at::Tensor next = EmptyShared({3, 5}, at::kDouble);
  EXPECT_EQ(next.data_ptr(), first) << "the pool hands out first what came back last";
}

TEST(TensorsTest, ASharedTensorOfNothingIsOneAndANegativeSizeIsRefused) {
  EXPECT_EQ(EmptyShared({4, 0}, at::kFloat).sizes(), at::IntArrayRef({4, 0}));
  try {
    EmptyShared({2, -3}, at::kFloat);
    ADD_FAILURE() << "it did not throw";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status(), absl::InvalidArgumentError("shape: has the negative size -3"));
  }
}

TEST(TensorsTest, AModelsTensorsArePlannedAsMatricesInTheirOrder) {
  const NamedTensors tensors = {{"conv", torch::zeros({4, 3, 2})},
                                {"bias", torch::zeros({7}, at::kDouble)},
                                {"none", torch::zeros({0, 5})}};
  const absl::StatusOr<std::vector<TensorSpec>> specs = SpecsOf(tensors, BucketsAt::kTensors);
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_EQ(specs->size(), 3U);
  EXPECT_EQ((*specs)[0].name, "conv");
  EXPECT_EQ((*specs)[0].count, 24U);
  EXPECT_EQ((*specs)[0].columns, 6U);
  EXPECT_EQ((*specs)[0].dtype, DType::kFloat32);
  EXPECT_EQ((*specs)[1].name, "bias");
  EXPECT_EQ((*specs)[1].count, 7U);
  EXPECT_EQ((*specs)[1].columns, 0U) << "a vector is no matrix";
  EXPECT_EQ((*specs)[1].dtype, DType::kFloat64);
  EXPECT_EQ((*specs)[1].layout, "");
  EXPECT_EQ((*specs)[2].count, 0U);
}

TEST(TensorsTest, LayoutsDifferWhereElementsLieInAnotherOrder) {
  const at::Tensor tensor = torch::zeros({4, 3, 2, 5});
  const at::Tensor last = tensor.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor gaps = torch::zeros({4, 3, 2, 10}).slice(3, 0, 10, 2);
  const at::Tensor line = torch::zeros({4, 1}).as_strided({4, 1}, {1, 77});
  const absl::StatusOr<std::vector<TensorSpec>> specs = SpecsOf(
      {{"plain", tensor}, {"last", last}, {"gaps", gaps}, {"line", line}}, BucketsAt::kHost);
  ASSERT_TRUE(specs.ok()) << specs.status();
  EXPECT_EQ((*specs)[0].layout, "strides [30, 10, 5, 1]");
  EXPECT_EQ((*specs)[1].layout, "strides [30, 1, 15, 3]");
  EXPECT_EQ((*specs)[2].layout, (*specs)[0].layout) << "a slot has no gaps";
  EXPECT_EQ((*specs)[3].layout, "strides [1, 1]") << "a dimension of one element has no say";
}

TEST(TensorsTest, BucketsLieOnTheTensorsDeviceOrOnTheHost) {
  const NamedTensors tensors = {{"w", torch::zeros({2})}};
  EXPECT_EQ((*SpecsOf(tensors, BucketsAt::kTensors))[0].device, Device{});
  EXPECT_EQ((*SpecsOf(tensors, BucketsAt::kHost))[0].device, Device{});
}

TEST(TensorsTest, AModelThatCannotBeCommunicatedIsRefusedByItsParameter) {
  const auto error_of = [](const NamedTensors& tensors) {
    return SpecsOf(tensors, BucketsAt::kHost).status().ToString();
  };
  const at::Tensor good = torch::zeros({2});
  EXPECT_EQ(error_of({}), "INVALID_ARGUMENT: parameters: none of them requires a gradient");
  EXPECT_EQ(error_of({{"a", good}, {"b", torch::empty({2}, at::kMeta)}}),
            "INVALID_ARGUMENT: parameter 'b' is on meta; tensors of the CPU and of GPUs are "
            "served");
  EXPECT_EQ(error_of({{"a", good}, {"c", good.to(at::kFloat8_e4m3fn)}}),
            "INVALID_ARGUMENT: parameter 'c': dtype: Float8_e4m3fn cannot be communicated");
}

}  // namespace
}  // namespace pelton::torch_bindings
