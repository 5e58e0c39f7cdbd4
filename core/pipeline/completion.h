// The one answer that is owed for each bucket that was handed to a channel.
#ifndef PELTON_CORE_PIPELINE_COMPLETION_H_
#define PELTON_CORE_PIPELINE_COMPLETION_H_

#include <utility>

#include "absl/status/status.h"
#include "core/base/ids.h"

namespace pelton {

// Is told of buckets that are complete.
// Threads: the channel's. Owns: what its subclass says.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  // Once per BucketCompletion. The bucket's memory is the runner's no longer.
  virtual void OnBucketComplete(BucketId bucket, Round round, const absl::Status& status) = 0;
};

// Answers exactly once (ONCE-1): with what it is given, or, when dropped without, with an error.
// Threads: one at a time. Owns: the duty to answer; the sink outlives it.
class BucketCompletion {
 public:
  BucketCompletion(CompletionSink& sink, BucketId bucket, Round round)
      : sink_(&sink), bucket_(bucket), round_(round) {}
  BucketCompletion(BucketCompletion&& other) noexcept
      : sink_(std::exchange(other.sink_, nullptr)), bucket_(other.bucket_), round_(other.round_) {}
  BucketCompletion& operator=(BucketCompletion&&) = delete;
  ~BucketCompletion() {
    if (sink_ != nullptr) Answer(absl::InternalError("its completion was dropped"));
  }

  void Set(const absl::Status& status) && { Answer(status); }

 private:
  void Answer(const absl::Status& status) {
    std::exchange(sink_, nullptr)->OnBucketComplete(bucket_, round_, status);
  }

  CompletionSink* sink_;
  BucketId bucket_;
  Round round_;
};

}  // namespace pelton

#endif  // PELTON_CORE_PIPELINE_COMPLETION_H_
