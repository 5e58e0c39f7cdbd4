// Which buckets of a round are complete.
#ifndef PELTON_CORE_ROUND_ROUND_LEDGER_H_
#define PELTON_CORE_ROUND_ROUND_LEDGER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"

namespace pelton {

// A round is complete when each of its buckets is, exactly once (ONCE-1).
// Threads: one at a time. Owns: the round's first error.
class RoundLedger {
 public:
  void Reset(int32_t bucket_count) {
    done_.assign(static_cast<size_t>(bucket_count), false);
    remaining_ = bucket_count;
    first_error_ = absl::OkStatus();
  }

  // Errors: Internal: no such bucket, or complete already.
  absl::Status Complete(BucketId bucket, const absl::Status& status) {
    const auto index = static_cast<size_t>(bucket.value());
    if (bucket.value() < 0 || index >= done_.size()) {
      return absl::InternalError(absl::StrCat("there is no bucket ", bucket.value()));
    }
    if (done_[index]) {
      return absl::InternalError(absl::StrCat("bucket ", bucket.value(), " is complete twice"));
    }
    done_[index] = true;
    --remaining_;
    first_error_.Update(status);
    return absl::OkStatus();
  }

  bool done(BucketId bucket) const { return done_[static_cast<size_t>(bucket.value())]; }
  bool complete() const { return remaining_ == 0; }
  int32_t complete_count() const { return static_cast<int32_t>(done_.size()) - remaining_; }
  const absl::Status& first_error() const { return first_error_; }

 private:
  std::vector<bool> done_;
  int32_t remaining_ = 0;
  absl::Status first_error_;
};

}  // namespace pelton

#endif  // PELTON_CORE_ROUND_ROUND_LEDGER_H_
