#include "comm/control/key_value_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {

using Kind = KeyValueRequest::Kind;

absl::Status KeyValueState::Validate(const KeyValueRequest& request) const {
  const bool many = request.kind == Kind::kWait || request.kind == Kind::kCheck;
  const size_t wanted = request.kind == Kind::kNumKeys ? 0 : 1;
  const size_t count = request.keys.size();
  if (many ? count > limits::kMaxKeysPerRequest : count != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys: there are ", count, ", must be ",
                     many ? absl::StrCat("at most ", limits::kMaxKeysPerRequest)
                          : absl::StrCat("exactly ", wanted)));
  }
  for (const std::string& key : request.keys) {
    if (key.empty() || key.size() > limits::kMaxKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("key: has ", key.size(), " bytes, must have 1 to ", limits::kMaxKeyBytes));
    }
  }
  for (const auto& [field, value] :
       {std::pair("value", &request.value), std::pair("expected", &request.expected)}) {
    if (value->size() > limits::kMaxValueBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": has ", value->size(), " bytes, must have at most ", limits::kMaxValueBytes));
    }
  }
  return absl::OkStatus();
}

void KeyValueState::Handle(const Call& call, KeyValueRequest request, Outbox* outbox) {
  if (absl::Status valid = Validate(request); !valid.ok()) {
    outbox->Answer(call.id, std::move(valid));
    return;
  }
  if (request.kind == Kind::kGet || request.kind == Kind::kWait) {
    AnswerOrPark({call, std::move(request), ""}, outbox);
    return;
  }
  outbox->Answer(call.id, Apply(request, outbox));
}

absl::StatusOr<KeyValueResult> KeyValueState::Apply(KeyValueRequest& request, Outbox* outbox) {
  switch (request.kind) {
    case Kind::kSet:
      RETURN_IF_ERROR(Put(request.keys[0], std::move(request.value), outbox));
      return KeyValueResult{};
    case Kind::kCheck: {
      const bool all = std::all_of(request.keys.begin(), request.keys.end(),
                                   [this](const auto& key) { return values_.contains(key); });
      return KeyValueResult{.number = all};
    }
    case Kind::kAdd:
      return Add(request.keys[0], request.delta, outbox);
    case Kind::kCompareAndSet:
      return CompareAndSet(request, outbox);
    case Kind::kDelete:
      return KeyValueResult{.number = Erase(request.keys[0])};
    case Kind::kNumKeys:
      return KeyValueResult{.number = static_cast<int64_t>(values_.size())};
    case Kind::kGet:
    case Kind::kWait:
      break;  // handled by AnswerOrPark
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kind: ", static_cast<int>(request.kind), " is no operation of the store"));
}

absl::StatusOr<KeyValueResult> KeyValueState::Add(const std::string& key, int64_t delta,
                                                  Outbox* outbox) {
  int64_t number = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    if (!absl::SimpleAtoi(found->second, &number)) {
      return absl::FailedPreconditionError(
          absl::StrCat("key ", Quote(key), ": its value is no decimal number"));
    }
  }
  int64_t sum;
  if (__builtin_add_overflow(number, delta, &sum)) {
    return absl::OutOfRangeError(
        absl::StrCat("key ", Quote(key), ": ", number, " + ", delta, " does not fit 64 bits"));
  }
  RETURN_IF_ERROR(Put(key, absl::StrCat(sum), outbox));
  return KeyValueResult{.number = sum};
}

absl::StatusOr<KeyValueResult> KeyValueState::CompareAndSet(KeyValueRequest& request,
                                                            Outbox* outbox) {
  const std::string& key = request.keys[0];
  const auto found = values_.find(key);
  if (found == values_.end() && !request.expected.empty()) {
    return absl::NotFoundError(absl::StrCat("key ", Quote(key), " does not exist"));
  }
  if (found != values_.end() && found->second != request.expected) {
    return KeyValueResult{.value = found->second};
  }
  RETURN_IF_ERROR(Put(key, request.value, outbox));
  return KeyValueResult{.value = std::move(request.value), .number = 1};
}

absl::Status KeyValueState::Put(const std::string& key, std::string value, Outbox* outbox) {
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : key.size() + found->second.size();
  const size_t after = bytes_ - before + key.size() + value.size();
  if (after > limits::kMaxStoreBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("key ", Quote(key), ": the store would hold ",
                                                     after, " bytes, its limit is ",
                                                     limits::kMaxStoreBytes));
  }
  bytes_ = after;
  values_[key] = std::move(value);
  const auto parked = parked_.find(key);
  if (parked == parked_.end()) return absl::OkStatus();
  const std::vector<uint64_t> calls = parked->second;
  for (const uint64_t call : calls) AnswerOrPark(Take(call), outbox);
  return absl::OkStatus();
}

bool KeyValueState::Erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second.size();
  values_.erase(found);
  return true;
}

void KeyValueState::AnswerOrPark(Waiting waiting, Outbox* outbox) {
  for (const std::string& key : waiting.request.keys) {
    if (values_.contains(key)) continue;
    waiting.parked_under = key;
    if (failed_because_) return AnswerFailed(waiting, *failed_because_, outbox);
    parked_[key].push_back(waiting.call.id);
    deadlines_.Add(waiting.call.id, waiting.call.deadline);
    const uint64_t id = waiting.call.id;
    waiting_.emplace(id, std::move(waiting));
    return;
  }
  KeyValueResult result;
  if (waiting.request.kind == Kind::kGet) result.value = values_[waiting.request.keys[0]];
  outbox->Answer(waiting.call.id, std::move(result));
}

KeyValueState::Waiting KeyValueState::Take(uint64_t call) {
  const auto found = waiting_.find(call);
  PELTON_CHECK(found != waiting_.end()) << "call " << call << " does not wait";
  Waiting waiting = std::move(found->second);
  waiting_.erase(found);
  deadlines_.Remove(call, waiting.call.deadline);
  const auto parked = parked_.find(waiting.parked_under);
  std::erase(parked->second, call);
  if (parked->second.empty()) parked_.erase(parked);
  return waiting;
}

void KeyValueState::Cancel(uint64_t call) {
  if (waiting_.contains(call)) Take(call);
}

void KeyValueState::Expire(absl::Time now, Outbox* outbox) {
  while (const std::optional<uint64_t> call = deadlines_.Due(now)) {
    const Waiting waiting = Take(*call);
    outbox->Answer(*call, absl::DeadlineExceededError(absl::StrCat(
                              "key ", Quote(waiting.parked_under), " was not set within ",
                              FormatTimeout(waiting.call.deadline - waiting.call.now))));
  }
}

void KeyValueState::Fail(const absl::Status& reason, Outbox* outbox) {
  if (!failed_because_) failed_because_ = reason;
  while (!waiting_.empty()) AnswerFailed(Take(waiting_.begin()->first), reason, outbox);
}

void KeyValueState::AnswerFailed(const Waiting& waiting, const absl::Status& reason,
                                 Outbox* outbox) {
  outbox->Answer(waiting.call.id,
                 Annotate(reason, absl::StrCat("waiting for key ", Quote(waiting.parked_under))));
}

}  // namespace pelton
