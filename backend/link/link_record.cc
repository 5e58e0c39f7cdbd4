#include "backend/link/link_record.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/memory/dtype.h"

namespace pelton {
namespace {

bool IsKind(uint32_t kind) {
  return (kind >= LinkRecord::kLaunch && kind <= LinkRecord::kFilled) ||
         (kind >= LinkRecord::kDone && kind <= LinkRecord::kReduced);
}

bool IsReduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitXor:
    case ReduceOp::kAvg:
      return true;
  }
  return false;
}

// Later code switches over these and looks sizes up by them.
absl::Status CheckEnumerators(const Operation& operation) {
  if (!IsOperationKind(operation.kind)) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation.kind: ", static_cast<int>(operation.kind),
                     " is no kind; start the trainer and the daemon from one installation"));
  }
  if (static_cast<int>(operation.dtype) >= kDTypeCount) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation.dtype: ", static_cast<int>(operation.dtype),
                     " is no dtype; start the trainer and the daemon from one installation"));
  }
  if (!IsReduction(operation.reduce_op)) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation.reduce_op: ", static_cast<int>(operation.reduce_op),
                     " is no reduction; start the trainer and the daemon from one installation"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParsedRecord::status() const {
  if (record.code == 0) return absl::OkStatus();
  const bool is_code =
      record.code > 0 && record.code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return {is_code ? static_cast<absl::StatusCode>(record.code) : absl::StatusCode::kUnknown, text};
}

std::string EncodeRecord(const LinkRecord& record, absl::string_view text) {
  std::string payload(reinterpret_cast<const char*>(&record), sizeof record);
  absl::StrAppend(&payload, text.substr(0, LinkRecord::kMaxTextBytes));
  return payload;
}

std::string EncodeRecord(LinkRecord record, const absl::Status& status) {
  record.code = static_cast<int32_t>(status.code());
  return EncodeRecord(record, status.message());
}

absl::StatusOr<ParsedRecord> DecodeRecord(absl::string_view payload) {
  ParsedRecord parsed;
  if (payload.size() < sizeof parsed.record ||
      payload.size() > sizeof parsed.record + LinkRecord::kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record of ", payload.size(), " bytes, not ", sizeof parsed.record, " to ",
                     sizeof parsed.record + LinkRecord::kMaxTextBytes,
                     "; start the trainer and the daemon from one installation"));
  }
  std::memcpy(&parsed.record, payload.data(), sizeof parsed.record);
  if (!IsKind(parsed.record.kind)) {
    return absl::InvalidArgumentError(absl::StrCat("a record of kind ", parsed.record.kind,
                                                   ", which this version does not know; start the "
                                                   "trainer and the daemon from one installation"));
  }
  if (absl::Status checked = CheckEnumerators(parsed.record.operation); !checked.ok()) {
    return checked;
  }
  parsed.text = std::string(payload.substr(sizeof parsed.record));
  return parsed;
}

}  // namespace pelton
