#include "comm/transport/nccl/nccl_library.h"

#include <string>

#include "comm/transport/nccl/operation_map.h"
#include "comm/transport/nccl/stand_in/stand_in_library.h"
#include "core/memory/cuda/shared_library.h"
#include "gmock/gmock.h"

namespace pelton::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string TextOf(const absl::Status& status) { return std::string(status.message()); }

class NcclLibraryTest : public testing::Test {
 protected:
  NcclLibraryTest() : stand_in_(stand_in::StandIn::Get()) {}
  ~NcclLibraryTest() override { stand_in_.reset(); }

  // The stand-in as if it had no function `hidden`.
  absl::StatusOr<std::unique_ptr<const NcclLibrary>> BindWithout(const std::string& hidden) {
    const auto library = SharedLibrary::Find({stand_in::LibraryPath(), {}, ""});
    return NcclLibrary::Bind(
        [&](const char* name) { return name == hidden ? nullptr : library->Symbol(name); },
        "libnccl.so.2");
  }

  const stand_in::StandIn& stand_in_;
};

TEST_F(NcclLibraryTest, ReportsItsVersionAndPath) {
  const auto library = NcclLibrary::Load(stand_in::LibraryPath());
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ((*library)->version(), 22809);
  EXPECT_THAT((*library)->Describe(), AllOf(HasSubstr("NCCL 2.28.9"), HasSubstr("stand_in.so")));
}

TEST_F(NcclLibraryTest, VersionsBeforeTwoNineCountedOtherwise) {
  EXPECT_EQ(VersionText(2804), "2.8.4");
  EXPECT_EQ(VersionText(21403), "2.14.3");
  EXPECT_EQ(VersionText(23007), "2.30.7");
}

TEST_F(NcclLibraryTest, NamesTheLibraryThatIsNotThere) {
  const absl::Status status = NcclLibrary::Load("/nowhere/libnccl.so.2").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("NCCL"), HasSubstr("/nowhere/libnccl.so.2")));
}

TEST_F(NcclLibraryTest, RefusesAVersionWhoseCallsBlock) {
  stand_in_.set_version(21304);
  const absl::Status status = BindWithout("").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("2.13.4"), HasSubstr("2.14.0")));
}

TEST_F(NcclLibraryTest, NamesTheFunctionThatIsMissing) {
  for (const char* name : {"ncclGetVersion", "ncclCommInitRankConfig", "ncclRecv"}) {
    const absl::Status status = BindWithout(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(TextOf(status), HasSubstr(std::string("has no ") + name));
  }
}

TEST_F(NcclLibraryTest, AFeatureIsRefusedOnlyWhenItIsNeeded) {
  const auto library = BindWithout("ncclCommRegister");
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ((*library)->Require(Feature::kAvg), absl::OkStatus());
  const absl::Status status = (*library)->Require(Feature::kRegister);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("ncclCommRegister"), HasSubstr("2.19.0")));
}

TEST_F(NcclLibraryTest, AnOldVersionLacksFeatures) {
  stand_in_.set_version(21804);
  const auto library = BindWithout("");
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_THAT(TextOf((*library)->Require(Feature::kRegister)), HasSubstr("this is NCCL 2.18.4"));
  EXPECT_FALSE((*library)->Require(static_cast<Feature>(99)).ok() &&
               (*library)->Require(Feature::kRegister).ok());
}

TEST_F(NcclLibraryTest, QuotesErrorsWithACodeThatSaysWhoseTheyAre) {
  const auto library = BindWithout("");
  ASSERT_TRUE(library.ok()) << library.status();
  auto code_of = [&](int result) {
    return (*library)->ToStatus(result, "ncclAllReduce", nullptr).code();
  };
  EXPECT_EQ(code_of(kOk), absl::StatusCode::kOk);
  EXPECT_EQ(code_of(kInProgress), absl::StatusCode::kOk);
  EXPECT_EQ(code_of(kUnhandledCudaError), absl::StatusCode::kInternal);
  EXPECT_EQ(code_of(kSystemError), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_of(kInternalError), absl::StatusCode::kInternal);
  EXPECT_EQ(code_of(kInvalidArgument), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(kInvalidUsage), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code_of(kRemoteError), absl::StatusCode::kUnavailable);
  EXPECT_EQ(TextOf((*library)->ToStatus(kRemoteError, "ncclAllReduce", nullptr)),
            "ncclAllReduce: remote process exited or there was a network error: said by the "
            "stand-in");
}

Operation Reduction(DType dtype, ReduceOp op) {
  Operation operation;
  operation.kind = OperationKind::kAllReduce;
  operation.dtype = dtype;
  operation.reduce_op = op;
  return operation;
}

TEST_F(NcclLibraryTest, ComplexNumbersAreAddedPartByPart) {
  const auto library = BindWithout("");
  const auto mapping = MappingOf(Reduction(DType::kComplex128, ReduceOp::kSum), **library);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ(mapping->type, Type::kFloat64);
  EXPECT_EQ(mapping->per_element, 2u);
}

TEST_F(NcclLibraryTest, WhatIsOnlyMovedIsBytes) {
  const auto library = BindWithout("");
  Operation operation;
  operation.kind = OperationKind::kAllGather;
  operation.dtype = DType::kInt16;
  EXPECT_EQ(MappingOf(operation, **library)->type, Type::kInt8);
  EXPECT_EQ(MappingOf(operation, **library)->per_element, 2u);
}

TEST_F(NcclLibraryTest, RefusesAKindThatItDoesNotKnowAndSaysWhatToDo) {
  const auto library = BindWithout("");
  Operation operation;
  operation.kind = OperationKind::kAllToAllV;
  const absl::Status status = MappingOf(operation, **library).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(TextOf(status), AllOf(HasSubstr("kind: alltoall_v"), HasSubstr("to the host")));
}

TEST_F(NcclLibraryTest, RefusesWhatItCannotReduceAndSaysWhatToDo) {
  const auto library = BindWithout("");
  const std::pair<DType, ReduceOp> refused[] = {{DType::kInt32, ReduceOp::kBitXor},
                                                {DType::kBool, ReduceOp::kBitXor},
                                                {DType::kComplex64, ReduceOp::kProduct},
                                                {DType::kInt16, ReduceOp::kSum}};
  for (const auto& [dtype, op] : refused) {
    EXPECT_FALSE(Reduces(dtype, op));
    const absl::Status status = MappingOf(Reduction(dtype, op), **library).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(TextOf(status), AllOf(HasSubstr(std::string(NameOf(dtype))),
                                      HasSubstr(std::string(NameOf(op))), HasSubstr("gather")));
  }
}

}  // namespace
}  // namespace pelton::nccl
