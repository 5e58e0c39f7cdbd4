#include "torch_bindings/csrc/c10d/store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "backend/backend.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/limits.h"
#include "core/base/moving_deadline.h"
#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {
namespace {

using Bytes = CoordinatorStore::Bytes;

std::string TextOf(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }
Bytes BytesOf(const std::string& text) { return {text.begin(), text.end()}; }

// PyTorch's own code catches these types.
void Check(const absl::Status& status) {
  const std::string text(status.message());
  if (absl::IsDeadlineExceeded(status)) C10_THROW_ERROR(DistStoreError, text);
  if (absl::IsUnavailable(status) || absl::IsAborted(status)) {
    C10_THROW_ERROR(DistNetworkError, text);
  }
  ThrowIfError(status);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

// As many at once as a request may name.
template <typename F>
void ForEachRequest(const CoordinatorStore::Strings& keys, F&& request) {
  for (size_t begin = 0; begin < keys.size(); begin += limits::kMaxKeysPerRequest) {
    const size_t end = std::min(keys.size(), begin + limits::kMaxKeysPerRequest);
    if (!request(CoordinatorStore::Strings(keys.begin() + static_cast<ptrdiff_t>(begin),
                                           keys.begin() + static_cast<ptrdiff_t>(end)))) {
      return;
    }
  }
}

// Until when a call may last; refuses it in a forked child.
absl::Time After(CoordinatorStore::Milliseconds timeout) {
  ThrowIfError(CheckNotForkedChild());
  return Clock::Real().Now() + absl::FromChrono(timeout);
}

}  // namespace

CoordinatorStore::CoordinatorStore(std::shared_ptr<Backend> backend, Milliseconds timeout)
    : Store(timeout), backend_(std::move(backend)), keys_(&backend_->control()) {}

absl::Time CoordinatorStore::Deadline() const { return After(timeout_); }

MovingDeadline CoordinatorStore::DeadlineOfWait(Milliseconds timeout) const {
  const absl::Time now = Clock::Real().Now();
  return {After(timeout), &backend_->absences().standstill(), now};
}

Bytes CoordinatorStore::Await(const std::string& key, const MovingDeadline& deadline) {
  return BytesOf(Value(
      AskUntil(deadline, Clock::Real(), [&](absl::Time until) { return keys_.Get(key, until); })));
}

void CoordinatorStore::set(const std::string& key, const Bytes& value) {
  Check(keys_.Set(key, TextOf(value), Deadline()));
}

Bytes CoordinatorStore::compareSet(const std::string& key, const Bytes& expected,
                                   const Bytes& desired) {
  if (expected.size() + desired.size() > limits::kMaxValueBytes) {
    ThrowStatus(absl::InvalidArgumentError(absl::StrCat(
        "compare_set of key '", key, "': the two values have ", expected.size(), " and ",
        desired.size(), " bytes, must have at most ", limits::kMaxValueBytes, " together")));
  }
  absl::StatusOr<std::string> now =
      keys_.CompareAndSet(key, TextOf(expected), TextOf(desired), Deadline());
  if (absl::IsNotFound(now.status())) return expected;
  return BytesOf(Value(std::move(now)));
}

Bytes CoordinatorStore::get(const std::string& key) { return Await(key, DeadlineOfWait(timeout_)); }

int64_t CoordinatorStore::add(const std::string& key, int64_t value) {
  return Value(keys_.Add(key, value, Deadline()));
}

bool CoordinatorStore::deleteKey(const std::string& key) {
  return Value(keys_.Delete(key, Deadline()));
}

bool CoordinatorStore::check(const Strings& keys) {
  const absl::Time deadline = Deadline();
  bool has_all = true;
  ForEachRequest(keys,
                 [&](const Strings& some) { return has_all = Value(keys_.Check(some, deadline)); });
  return has_all;
}

int64_t CoordinatorStore::getNumKeys() { return Value(keys_.NumKeys(Deadline())); }

void CoordinatorStore::wait(const Strings& keys, const Milliseconds& timeout) {
  const MovingDeadline deadline = DeadlineOfWait(timeout);
  ForEachRequest(keys, [&](const Strings& some) {
    Check(AskUntil(deadline, Clock::Real(),
                   [&](absl::Time until) { return keys_.Wait(some, until); }));
    return true;
  });
}

void CoordinatorStore::append(const std::string& key, const Bytes& value) {
  Check(keys_.Append(key, TextOf(value), Deadline()));
}

std::vector<Bytes> CoordinatorStore::multiGet(const Strings& keys) {
  const MovingDeadline deadline = DeadlineOfWait(timeout_);
  std::vector<Bytes> values;
  for (const std::string& key : keys) values.push_back(Await(key, deadline));
  return values;
}

void CoordinatorStore::multiSet(const Strings& keys, const std::vector<Bytes>& values) {
  if (keys.size() != values.size()) {
    ThrowStatus(absl::InvalidArgumentError(
        absl::StrCat("multi_set: ", keys.size(), " keys, but ", values.size(), " values")));
  }
  const absl::Time deadline = Deadline();
  for (size_t i = 0; i < keys.size(); ++i) {
    Check(keys_.Set(keys[i], TextOf(values[i]), deadline));
  }
}

}  // namespace pelton::torch_bindings
