#include "comm/control/key_value.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/control/control.h"
#include "core/base/status.h"

namespace pelton {

using Kind = KeyValueRequest::Kind;

absl::Status KeyValueStore::Set(const std::string& key, const std::string& value,
                                absl::Time deadline) {
  return control_->KeyValue({.kind = Kind::kSet, .keys = {key}, .value = value}, deadline).status();
}

absl::StatusOr<std::string> KeyValueStore::Get(const std::string& key, absl::Time deadline) {
  ASSIGN_OR_RETURN(KeyValueResult result,
                   control_->KeyValue({.kind = Kind::kGet, .keys = {key}}, deadline));
  return std::move(result.value);
}

absl::Status KeyValueStore::Wait(const std::vector<std::string>& keys, absl::Time deadline) {
  return control_->KeyValue({.kind = Kind::kWait, .keys = keys}, deadline).status();
}

absl::StatusOr<bool> KeyValueStore::Check(const std::vector<std::string>& keys,
                                          absl::Time deadline) {
  ASSIGN_OR_RETURN(const KeyValueResult result,
                   control_->KeyValue({.kind = Kind::kCheck, .keys = keys}, deadline));
  return result.number != 0;
}

absl::StatusOr<int64_t> KeyValueStore::Add(const std::string& key, int64_t delta,
                                           absl::Time deadline) {
  ASSIGN_OR_RETURN(
      const KeyValueResult result,
      control_->KeyValue({.kind = Kind::kAdd, .keys = {key}, .delta = delta}, deadline));
  return result.number;
}

absl::StatusOr<std::string> KeyValueStore::CompareAndSet(const std::string& key,
                                                         const std::string& expected,
                                                         const std::string& desired,
                                                         absl::Time deadline) {
  ASSIGN_OR_RETURN(
      KeyValueResult result,
      control_->KeyValue(
          {.kind = Kind::kCompareAndSet, .keys = {key}, .value = desired, .expected = expected},
          deadline));
  return std::move(result.value);
}

absl::Status KeyValueStore::Append(const std::string& key, const std::string& tail,
                                   absl::Time deadline) {
  KeyValueRequest request{.kind = Kind::kCompareAndSet, .keys = {key}};
  while (true) {
    request.value = absl::StrCat(request.expected, tail);
    absl::StatusOr<KeyValueResult> result = control_->KeyValue(request, deadline);
    if (absl::IsNotFound(result.status())) {  // deleted since we looked
      request.expected.clear();
      continue;
    }
    RETURN_IF_ERROR(result.status());
    if (result->number != 0) return absl::OkStatus();
    request.expected = std::move(result->value);
  }
}

absl::StatusOr<bool> KeyValueStore::Delete(const std::string& key, absl::Time deadline) {
  ASSIGN_OR_RETURN(const KeyValueResult result,
                   control_->KeyValue({.kind = Kind::kDelete, .keys = {key}}, deadline));
  return result.number != 0;
}

absl::StatusOr<int64_t> KeyValueStore::NumKeys(absl::Time deadline) {
  ASSIGN_OR_RETURN(const KeyValueResult result,
                   control_->KeyValue({.kind = Kind::kNumKeys, .keys = {}}, deadline));
  return result.number;
}

}  // namespace pelton
