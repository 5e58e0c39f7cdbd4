#include "comm/overlap.h"

#include <functional>

namespace pelton {
namespace {

using Bytes = absl::Span<const std::byte>;

// Where `part` lies as number `rank` of the equal parts of `whole`.
bool IsChunk(Bytes part, Bytes whole, Rank rank) {
  return part.data() == whole.data() + static_cast<size_t>(rank.value()) * part.size();
}

}  // namespace

bool Clash(OperationKind kind, Rank rank, Bytes source, Bytes target) {
  if (source.empty() || target.empty()) return false;
  const std::less<> before;  // also for pointers into different objects
  const bool overlap = before(source.data(), target.data() + target.size()) &&
                       before(target.data(), source.data() + source.size());
  if (!overlap) return false;
  switch (TraitsOf(kind).in_place) {
    case InPlaceForm::kSame:
      return source.data() != target.data();
    case InPlaceForm::kTargetIsOwnChunk:
      return !IsChunk(target, source, rank);
    case InPlaceForm::kSourceIsOwnChunk:
      return !IsChunk(source, target, rank);
    case InPlaceForm::kNever:
      break;
  }
  return true;
}

absl::string_view InPlaceFormOf(OperationKind kind) {
  switch (TraitsOf(kind).in_place) {
    case InPlaceForm::kSame:
      return "works in place where target is source";
    case InPlaceForm::kTargetIsOwnChunk:
      return "works in place where target is this rank's chunk of source";
    case InPlaceForm::kSourceIsOwnChunk:
      return "works in place where source is this rank's chunk of target";
    case InPlaceForm::kNever:
      break;
  }
  return "does not work in place";
}

}  // namespace pelton
