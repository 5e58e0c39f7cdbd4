#include "comm/hierarchy/stages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton::hierarchy {
namespace {

// Of a tensor: small enough that the wires idle little before the first stage's messages and after
// the last one's, large enough that a message's own costs do not show.
constexpr uint64_t kMinStageBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxStageBytes = uint64_t{8} << 20;
constexpr uint64_t kStagesPerCollective = 8;

struct Range {
  uint64_t begin = 0;
  uint64_t count = 0;
};

Piece At(Buffer buffer, uint64_t offset, uint64_t count) { return {buffer, offset, count}; }

bool IsSixteenBit(DType dtype) { return dtype == DType::kFloat16 || dtype == DType::kBFloat16; }

// Threads: one. Owns: what it makes.
class Maker {
 public:
  Maker(const Operation& operation, int32_t rank, const Layout& layout, const SelectionTable& table)
      : operation_(operation),
        layout_(layout),
        table_(table),
        rank_(rank),
        host_(layout.HostOf(rank)),
        self_(layout.LocalRankOf(rank)),
        local_count_(static_cast<int32_t>(layout.RanksOn(host_).size())) {}

  absl::StatusOr<StagedCollective> MakeStaged();
  absl::StatusOr<StagedCollective> MakeFlat();

 private:
  // How an AVG is shared between the levels.
  ReduceOp InsideOp() const {
    if (operation_.reduce_op != ReduceOp::kAvg) return operation_.reduce_op;
    return PassesMeans() ? ReduceOp::kAvg : ReduceOp::kSum;
  }
  int32_t Divisor() const { return PassesMeans() ? layout_.host_count() : layout_.world_size(); }
  bool PassesMeans() const {
    return IsSixteenBit(operation_.dtype) &&
           layout_.rail_count() * layout_.host_count() == layout_.world_size();
  }

  bool is_owner() const { return self_ < layout_.rail_count(); }
  // Whether every rank of this host owns a slice, so that one operation moves all slices.
  bool all_own() const { return local_count_ == layout_.rail_count(); }
  uint64_t SliceCount(Range range) const { return range.count / layout_.rail_count(); }
  Range SliceOf(Range range, int32_t rail) const;
  // The local rank of this host that is in touch with `rank` of another one.
  int32_t ContactOf(int32_t rank) const { return layout_.LocalRankOf(rank) % local_count_; }
  uint64_t Scratch(uint64_t count) { return std::exchange(scratch_, scratch_ + count); }

  absl::Status Add(Range range);
  absl::Status AddAllReduce(Range range);
  absl::Status AddReduce(Range range);
  absl::Status AddBroadcast(Range range);
  void AddReduceScatter(Range range);
  void AddAllGather(Range range);

  void ReduceSlices(Stage& stage, Range range, Piece partial) const;
  void SpreadSlices(Stage& stage, Range range) const;
  void DeliverSlices(Stage& stage, Range range, Piece partial) const;
  absl::Status AddRail(Stage& stage, Range slice) const;
  std::vector<Piece> ReducePartials(Stage& stage, Range range);
  void SendPartials(ProgramWave& wave, const std::vector<Piece>& partials) const;

  const Operation& operation_;
  const Layout& layout_;
  const SelectionTable& table_;
  const int32_t rank_;
  const int32_t host_;
  const int32_t self_;  // local rank
  const int32_t local_count_;
  uint64_t scratch_ = 0;
  std::vector<Stage> stages_;
};

// The last slice takes the rest.
Range Maker::SliceOf(Range range, int32_t rail) const {
  const uint64_t count = SliceCount(range);
  const uint64_t begin = count * static_cast<uint64_t>(rail);
  const bool is_last = rail + 1 == layout_.rail_count();
  return {range.begin + begin, is_last ? range.count - begin : count};
}

// Onto `partial` of each owner, which is its slice.
void Maker::ReduceSlices(Stage& stage, Range range, Piece partial) const {
  const uint64_t slice = all_own() ? SliceCount(range) : 0;
  if (slice > 0) {
    stage.up.push_back({OperationKind::kReduceScatter, kNoPeer, At(Buffer::kSource, range.begin, 0),
                        partial, slice, InsideOp()});
  }
  for (int32_t rail = 0; rail < layout_.rail_count(); ++rail) {
    const Range rest = SliceOf(range, rail);
    if (rest.count == slice) continue;
    Piece target = partial;
    target.offset += slice;
    stage.up.push_back({OperationKind::kReduce, rail, At(Buffer::kSource, rest.begin + slice, 0),
                        target, rest.count - slice, InsideOp()});
  }
}

// From the owners' places in the target to those of all.
void Maker::SpreadSlices(Stage& stage, Range range) const {
  const uint64_t slice = all_own() ? SliceCount(range) : 0;
  if (slice > 0) {
    const uint64_t own = range.begin + slice * static_cast<uint64_t>(self_);
    stage.down.push_back({OperationKind::kAllGather, kNoPeer, At(Buffer::kTarget, own, 0),
                          At(Buffer::kTarget, range.begin, 0), slice});
  }
  for (int32_t rail = 0; rail < layout_.rail_count(); ++rail) {
    const Range rest = SliceOf(range, rail);
    if (rest.count == slice) continue;
    stage.down.push_back({OperationKind::kBroadcast,
                          rail,
                          {},
                          At(Buffer::kTarget, rest.begin + slice, 0),
                          rest.count - slice});
  }
}

// From the owners' `partial` to the root's target.
void Maker::DeliverSlices(Stage& stage, Range range, Piece partial) const {
  const int32_t root = layout_.LocalRankOf(operation_.peer);
  for (int32_t rail = 0; rail < layout_.rail_count(); ++rail) {
    const Range slice = SliceOf(range, rail);
    if (rail == root || slice.count == 0) continue;
    if (self_ == rail) {
      stage.down.push_back({OperationKind::kSend, root, partial, {}, slice.count});
    }
    if (self_ == root) {
      stage.down.push_back(
          {OperationKind::kRecv, rail, {}, At(Buffer::kTarget, slice.begin, 0), slice.count});
    }
  }
}

absl::Status Maker::AddRail(Stage& stage, Range slice) const {
  if (!is_owner() || slice.count == 0) return absl::OkStatus();
  ProgramShape shape;
  shape.kind = operation_.kind;
  shape.rank = host_;
  shape.world_size = layout_.host_count();
  shape.root = operation_.peer >= 0 ? layout_.HostOf(operation_.peer) : 0;
  shape.count = slice.count;
  shape.dtype = operation_.dtype;
  shape.reduce_op = operation_.reduce_op;
  ASSIGN_OR_RETURN(const RecipeRegistry::Entry recipe, table_.Select(shape));
  stage.messages = recipe.factory.make(shape);
  stage.peers = layout_.Rail(self_);
  stage.reduce_op = operation_.reduce_op;
  stage.divisor = Divisor();
  return absl::OkStatus();
}

absl::Status Maker::AddAllReduce(Range range) {
  Stage& stage = stages_.emplace_back();
  const Range slice = is_owner() ? SliceOf(range, self_) : Range{};
  stage.target = At(Buffer::kTarget, slice.begin, 0);
  stage.source = stage.target;
  if (local_count_ > 1) {
    ReduceSlices(stage, range, stage.target);
    SpreadSlices(stage, range);
  } else {
    stage.source = At(Buffer::kSource, slice.begin, 0);
  }
  return AddRail(stage, slice);
}

absl::Status Maker::AddReduce(Range range) {
  Stage& stage = stages_.emplace_back();
  const Range slice = is_owner() ? SliceOf(range, self_) : Range{};
  const bool is_root = rank_ == operation_.peer;
  // A source is not to be written, and only the root has a target.
  stage.target =
      is_root ? At(Buffer::kTarget, slice.begin, 0) : At(Buffer::kScratch, Scratch(slice.count), 0);
  stage.source = stage.target;
  if (local_count_ > 1) {
    ReduceSlices(stage, range, stage.target);
    if (layout_.HostOf(operation_.peer) == host_) DeliverSlices(stage, range, stage.target);
  } else {
    stage.source = At(Buffer::kSource, slice.begin, 0);
  }
  return AddRail(stage, slice);
}

absl::Status Maker::AddBroadcast(Range range) {
  Stage& stage = stages_.emplace_back();
  const Range slice = is_owner() ? SliceOf(range, self_) : Range{};
  stage.target = At(Buffer::kTarget, slice.begin, 0);
  stage.source = stage.target;
  if (local_count_ > 1 && layout_.HostOf(operation_.peer) == host_) {
    stage.up.push_back({OperationKind::kBroadcast,
                        layout_.LocalRankOf(operation_.peer),
                        {},
                        At(Buffer::kTarget, range.begin, 0),
                        range.count});
  } else if (local_count_ > 1) {
    SpreadSlices(stage, range);
  }
  return AddRail(stage, slice);
}

// This host's sums of the chunks that this rank sends or keeps, by rank of the group; those of no
// concern to it are empty. Other hosts' chunks come first: their way is the longest.
std::vector<Piece> Maker::ReducePartials(Stage& stage, Range range) {
  std::vector<Piece> partials(layout_.world_size());
  for (int32_t step = 1; step <= layout_.host_count(); ++step) {
    const int32_t host = (host_ + step) % layout_.host_count();
    for (const int32_t rank : layout_.RanksOn(host)) {
      const int32_t contact = ContactOf(rank);
      const Piece chunk = At(Buffer::kSource, rank * operation_.count + range.begin, range.count);
      Piece& partial = partials[rank];
      if (local_count_ == 1) {
        partial = chunk;
        continue;
      }
      if (rank == rank_) partial = At(Buffer::kTarget, range.begin, range.count);
      if (rank != rank_ && contact == self_ && host != host_) {
        partial = At(Buffer::kScratch, Scratch(range.count), range.count);
      }
      stage.up.push_back(
          {OperationKind::kReduce, contact, chunk, partial, range.count, InsideOp()});
    }
  }
  return partials;
}

void Maker::SendPartials(ProgramWave& wave, const std::vector<Piece>& partials) const {
  for (int32_t rank = 0; rank < layout_.world_size(); ++rank) {
    if (layout_.HostOf(rank) == host_ || ContactOf(rank) != self_) continue;
    // The program's source is the run's scratch, or the operation's source.
    wave.transfers.push_back({Transfer::Direction::kSend, rank,
                              At(Buffer::kSource, partials[rank].offset, partials[rank].count)});
  }
}

void Maker::AddReduceScatter(Range range) {
  Stage& stage = stages_.emplace_back();
  const std::vector<Piece> partials = ReducePartials(stage, range);
  stage.source = At(local_count_ == 1 ? Buffer::kSource : Buffer::kScratch, 0, 0);
  stage.target = At(Buffer::kTarget, 0, 0);
  stage.peers = Group::World(WorldSize(layout_.world_size())).members;
  stage.reduce_op = operation_.reduce_op;
  stage.divisor = Divisor();
  ProgramWave wave;
  SendPartials(wave, partials);
  LocalStep sum{LocalStep::Kind::kReduceLast, {}, At(Buffer::kTarget, range.begin, range.count)};
  for (int32_t host = 0; host < layout_.host_count(); ++host) {
    const std::vector<int32_t>& ranks = layout_.RanksOn(host);
    if (host == host_) {
      sum.sources.push_back(local_count_ == 1 ? partials[rank_] : sum.target);
      continue;
    }
    const Piece received = At(Buffer::kScratch, stage.messages.scratch_count, range.count);
    stage.messages.scratch_count += range.count;
    sum.sources.push_back(received);
    wave.transfers.push_back(
        {Transfer::Direction::kRecv, ranks[self_ % static_cast<int32_t>(ranks.size())], received});
  }
  wave.local.push_back(std::move(sum));
  stage.messages.strands.push_back({std::move(wave)});
}

void Maker::AddAllGather(Range range) {
  Stage& stage = stages_.emplace_back();
  const auto place_of = [&](int32_t rank) {
    return At(Buffer::kTarget, rank * operation_.count + range.begin, range.count);
  };
  stage.copied_from = At(Buffer::kSource, range.begin, range.count);
  stage.copied_to = place_of(rank_);
  stage.source = At(Buffer::kSource, 0, 0);
  stage.target = At(Buffer::kTarget, 0, 0);
  stage.peers = Group::World(WorldSize(layout_.world_size())).members;
  ProgramWave wave;
  for (int32_t step = 1; step < layout_.host_count(); ++step) {
    const std::vector<int32_t>& ranks = layout_.RanksOn((host_ + step) % layout_.host_count());
    wave.transfers.push_back({Transfer::Direction::kSend,
                              ranks[self_ % static_cast<int32_t>(ranks.size())],
                              stage.copied_from});
  }
  for (int32_t rank = 0; rank < layout_.world_size(); ++rank) {
    const bool is_far = layout_.HostOf(rank) != host_;
    if (is_far && ContactOf(rank) == self_) {
      wave.transfers.push_back({Transfer::Direction::kRecv, rank, place_of(rank)});
    }
    if (local_count_ == 1) continue;
    (is_far ? stage.down : stage.up)
        .push_back({OperationKind::kBroadcast, ContactOf(rank), {}, place_of(rank), range.count});
  }
  stage.messages.strands.push_back({std::move(wave)});
}

absl::StatusOr<StagedCollective> Maker::MakeFlat() {
  const WorldSize world_size(layout_.world_size());
  const ProgramShape shape = ShapeOf(operation_, Rank(rank_), world_size);
  ASSIGN_OR_RETURN(const RecipeRegistry::Entry recipe, table_.Select(shape));
  Stage& stage = stages_.emplace_back();
  stage.messages = recipe.factory.make(shape);
  stage.peers = Group::World(world_size).members;
  stage.source = At(Buffer::kSource, 0, 0);
  stage.target = At(Buffer::kTarget, 0, 0);
  stage.reduce_op = shape.reduce_op;
  stage.divisor = layout_.world_size();
  return StagedCollective{0, std::move(stages_)};
}

absl::Status Maker::Add(Range range) {
  switch (operation_.kind) {
    case OperationKind::kAllReduce:
      return AddAllReduce(range);
    case OperationKind::kReduce:
      return AddReduce(range);
    case OperationKind::kBroadcast:
      return AddBroadcast(range);
    case OperationKind::kReduceScatter:
      AddReduceScatter(range);
      return absl::OkStatus();
    case OperationKind::kAllGather:
      AddAllGather(range);
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrCat("kind: ", NameOf(operation_.kind), " has no stages between hosts"));
  }
}

absl::StatusOr<StagedCollective> Maker::MakeStaged() {
  const OperationTraits& traits = TraitsOf(operation_.kind);
  const bool has_chunks =
      traits.source == TensorLength::kChunks || traits.target == TensorLength::kChunks;
  const uint64_t bytes_per_count =
      SizeOf(operation_.dtype) * (has_chunks ? static_cast<uint64_t>(layout_.world_size()) : 1);
  const uint64_t stage_bytes = std::clamp(operation_.count * bytes_per_count / kStagesPerCollective,
                                          kMinStageBytes, kMaxStageBytes);
  const uint64_t step = std::max<uint64_t>(stage_bytes / bytes_per_count, 1);
  for (uint64_t begin = 0; begin < operation_.count; begin += step) {
    const Range range{begin, std::min(step, operation_.count - begin)};
    RETURN_IF_ERROR(Add(range));
  }
  return StagedCollective{scratch_, std::move(stages_)};
}

}  // namespace

absl::StatusOr<StagedCollective> MakeStages(const Operation& operation, int32_t rank,
                                            const Layout& layout, const SelectionTable& table,
                                            bool has_stages) {
  Maker maker(operation, rank, layout, table);
  return has_stages ? maker.MakeStaged() : maker.MakeFlat();
}

}  // namespace pelton::hierarchy
