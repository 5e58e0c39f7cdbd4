#include "comm/transport/conformance/rank_exchange.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "comm/await.h"
#include "comm/transport/conformance/rounding.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton::conformance {
namespace {

constexpr size_t kGuardBytes = limits::kSlotAlignmentBytes;
constexpr std::byte kGuard{0xa5};

bool Intact(const std::byte* guard) {
  return std::all_of(guard, guard + kGuardBytes, [](std::byte byte) { return byte == kGuard; });
}

// memset, which costs a sanitizer one check and not one per byte.
void Spoil(std::byte* tensor, size_t size_bytes) {
  if (size_bytes > 0) std::memset(tensor, 0x5c, size_bytes);
}

}  // namespace

Arena::Arena(size_t size_bytes, bool is_region) : size_bytes_(size_bytes) {
  if (is_region) {
    auto region = Region::Create(size_bytes, "arena");
    PELTON_CHECK(region.ok()) << region.status();
    region_ = *std::move(region);
    base_ = region_->data();
  } else {
    private_.resize(size_bytes + kGuardBytes);
    const auto address = reinterpret_cast<uintptr_t>(private_.data());
    base_ = private_.data() + (kGuardBytes - address % kGuardBytes) % kGuardBytes;
  }
}

std::byte* Arena::Allocate(size_t size_bytes, size_t offset_bytes) {
  std::byte* const begin = base_ + used_bytes_ + kGuardBytes + offset_bytes;
  std::byte* const end = begin + size_bytes;
  used_bytes_ += kGuardBytes + offset_bytes + size_bytes + kGuardBytes;
  used_bytes_ = (used_bytes_ + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
  PELTON_CHECK(used_bytes_ <= size_bytes_) << "the arena of " << size_bytes_ << " bytes is full";
  std::fill(begin - kGuardBytes, begin, kGuard);
  std::fill(end, end + kGuardBytes, kGuard);
  guards_.push_back({begin, end});
  return begin;
}

std::string Arena::CheckGuards() const {
  for (const Guarded& tensor : guards_) {
    if (!Intact(tensor.begin - kGuardBytes)) return "bytes before a tensor were written";
    if (!Intact(tensor.end)) return "bytes behind a tensor were written";
  }
  return "";
}

void Arena::Reset() {
  used_bytes_ = 0;
  guards_.clear();
}

RankExchange::RankExchange(const Exchange& exchange, Rank rank, RankMemory& memory)
    : exchange_(exchange),
      rank_(static_cast<size_t>(rank.value())),
      chunk_bytes_(exchange.spec.count * SizeOf(exchange.spec.dtype)) {
  const bool in_region = exchange.spec.placement == Placement::kRegion ||
                         (exchange.spec.placement == Placement::kMixed && rank_ % 2 == 0);
  Place(in_region ? memory.region : memory.own);
}

void RankExchange::Place(Arena& arena) {
  const ExchangeSpec& spec = exchange_.spec;
  const std::vector<std::byte>& input = exchange_.inputs[rank_];
  const size_t target_bytes = exchange_.expected[rank_].size();
  const size_t offset_bytes = spec.offset_count * SizeOf(spec.dtype);
  if (spec.kind == OperationKind::kBroadcast) {
    source_ = target_ = arena.Allocate(input.size(), offset_bytes);
  } else if (spec.in_place && spec.kind == OperationKind::kAllGather) {
    target_ = arena.Allocate(target_bytes, offset_bytes);
    source_ = target_ + rank_ * chunk_bytes_;
  } else if (spec.in_place) {
    source_ = arena.Allocate(input.size(), offset_bytes);
    target_ = spec.kind == OperationKind::kReduceScatter ? source_ + rank_ * chunk_bytes_ : source_;
  } else {
    source_ = arena.Allocate(input.size(), offset_bytes);
    target_ = arena.Allocate(target_bytes, offset_bytes);
    Spoil(target_, target_bytes);
  }
  const bool reads =
      spec.kind != OperationKind::kBroadcast || rank_ == static_cast<size_t>(spec.root);
  Spoil(source_, input.size());
  if (reads) std::copy(input.begin(), input.end(), source_);
}

Operation RankExchange::MakeOperation() const {
  const ExchangeSpec& spec = exchange_.spec;
  Operation operation;
  operation.kind = spec.kind;
  operation.dtype = spec.dtype;
  operation.reduce_op = spec.op;
  operation.peer = spec.root;
  operation.count = spec.count;
  operation.tag = spec.tag;
  operation.set_source(Locate(source_, exchange_.inputs[rank_].size()));
  operation.set_target(Locate(target_, exchange_.expected[rank_].size()));
  return operation;
}

absl::Status RankExchange::Launch(Communicator& communicator) {
  HostStream stream;
  Operation operation = MakeOperation();
  if (operation.kind != OperationKind::kSend) {
    ASSIGN_OR_RETURN(completions_.emplace_back(), communicator.Launch(operation, stream));
    return absl::OkStatus();
  }
  const int32_t n = communicator.world_size().value();
  const auto rank = static_cast<int32_t>(rank_);
  operation.peer = (rank + exchange_.spec.step) % n;
  ASSIGN_OR_RETURN(completions_.emplace_back(), communicator.Launch(operation, stream));
  operation.kind = OperationKind::kRecv;
  operation.peer = (rank + n - exchange_.spec.step) % n;
  ASSIGN_OR_RETURN(completions_.emplace_back(), communicator.Launch(operation, stream));
  return absl::OkStatus();
}

absl::Status RankExchange::AwaitAll(Communicator& communicator, absl::Time deadline) {
  for (Completion completion : completions_) {
    RETURN_IF_ERROR(Await(communicator, completion, deadline));
  }
  return absl::OkStatus();
}

std::vector<std::byte> RankExchange::Result() const {
  return {target_, target_ + exchange_.expected[rank_].size()};
}

std::string RankExchange::Check(bool bitwise) const {
  const ExchangeSpec& spec = exchange_.spec;
  const std::vector<std::byte>& expected = exchange_.expected[rank_];
  const std::string wrong = bitwise || !IsReduction(spec.kind)
                                ? DifferenceOfElements(spec.dtype, expected, target_)
                                : DifferenceBeyondRounding(exchange_, expected, target_);
  if (!wrong.empty()) return absl::StrCat("target of ", Describe(spec), ": ", wrong);
  if (spec.in_place || spec.kind == OperationKind::kBroadcast) return "";
  const std::vector<std::byte>& input = exchange_.inputs[rank_];
  if (!input.empty() && std::memcmp(input.data(), source_, input.size()) != 0) {
    return absl::StrCat("source of ", Describe(spec), " was written");
  }
  return "";
}

}  // namespace pelton::conformance
