#include "core/memory/copy_beside.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/actor/actor.h"
#include "core/actor/backoff.h"
#include "core/actor/sendable.h"
#include "core/actor/spawn.h"
#include "core/base/clock.h"
#include "core/base/limits.h"

namespace pelton {
namespace {

// The waiting thread waits for one piece at most. A piece is so large that taking one costs
// nothing.
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kSampleBytes = 64;
constexpr size_t kSampleStrideBytes = size_t{64} << 10;

}  // namespace

// Threads: any. Owns: nothing; the memory is there as long as a piece may be taken.
struct CopyBeside::Job {
  struct Piece {
    const std::byte* source;
    std::byte* target;
    size_t size_bytes;
  };

  // Copies the next piece; false: there is none left.
  bool CopyNext() {
    const size_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= pieces.size()) return false;
    std::memcpy(pieces[i].target, pieces[i].source, pieces[i].size_bytes);
    // Releases what was copied.
    copied.fetch_add(1, std::memory_order_acq_rel);
    return true;
  }

  std::vector<Piece> pieces;
  std::atomic<size_t> next{0};
  std::atomic<size_t> copied{0};
};

// Threads: a value. Owns: its share of the job.
struct SharedCopy {
  std::shared_ptr<void> job;  // shared: see CopyBeside::job_
};
template <>
inline constexpr bool kSendableType<SharedCopy> = true;

struct CopyAll {
  SharedCopy copy;
};

// A turn lasts for a whole copy, on a thread where nobody else waits for one.
// Threads: as every actor. Owns: nothing; kicks the waker of a CopyBeside, which outlives it.
class CopyingActor final : public Actor {
 public:
  explicit CopyingActor(Waker* waker) : waker_(waker) {}

  void Handle(CopyAll message) {
    auto* const job = static_cast<CopyBeside::Job*>(message.copy.job.get());
    while (job->CopyNext()) {
    }
    waker_->Kick();
  }

 private:
  Waker* const waker_;
};

CopyBeside::CopyBeside()
    : executor_({.name = "pelton-snapshot"}),
      actor_(Spawn<CopyingActor>(executor_, {.name = "copies"}, &waker_)) {}

CopyBeside::~CopyBeside() {
  Abandon();
  executor_.Shutdown(Clock::Real().Now() + limits::kStopTimeout).IgnoreError();
}

absl::Status CopyBeside::Begin(std::vector<Part> parts) {
  Abandon();
  parts_ = std::move(parts);
  TakeSamples();
  job_ = std::make_shared<Job>();
  for (const Part& part : parts_) {
    for (size_t at = 0; at < part.size_bytes; at += kPieceBytes) {
      const size_t size_bytes = std::min(kPieceBytes, part.size_bytes - at);
      job_->pieces.push_back({part.source + at, part.target + at, size_bytes});
    }
  }
  return actor_.Send(CopyAll{{job_}});
}

void CopyBeside::TakeSamples() {
  places_.clear();
  size_t at = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    const size_t size_bytes = parts_[i].size_bytes;
    for (size_t offset = 0; offset < size_bytes; offset += kSampleStrideBytes) {
      places_.push_back({i, offset, std::min(kSampleBytes, size_bytes - offset), at});
      at += places_.back().size_bytes;
    }
    // Its end, which is written last.
    const size_t last_bytes = std::min(kSampleBytes, size_bytes);
    places_.push_back({i, size_bytes - last_bytes, last_bytes, at});
    at += last_bytes;
  }
  samples_.resize(at);
  for (const Sample& place : places_) {
    std::memcpy(&samples_[place.at], parts_[place.part].source + place.offset, place.size_bytes);
  }
}

bool CopyBeside::is_copied() const {
  return job_ == nullptr || job_->copied.load(std::memory_order_acquire) == job_->pieces.size();
}

absl::Status CopyBeside::Wait(absl::Time deadline) {
  while (job_ != nullptr && job_->CopyNext()) {
  }
  while (!is_copied()) {
    const absl::Time now = Clock::Real().Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat("a copy beside training has copied ",
                                                      job_->copied.load(), " of ",
                                                      job_->pieces.size(), " pieces of 1 MiB"));
    }
    waker_.Park(std::min(waits::kLongestSleepForWork, deadline - now));
  }
  return absl::OkStatus();
}

std::optional<size_t> CopyBeside::FindChanged() const {
  for (const Sample& place : places_) {
    const std::byte* const copy = parts_[place.part].target + place.offset;
    if (std::memcmp(&samples_[place.at], copy, place.size_bytes) != 0) return place.part;
  }
  return std::nullopt;
}

void CopyBeside::Abandon() {
  if (job_ == nullptr) return;
  const size_t count = job_->pieces.size();
  const size_t taken = std::min(job_->next.exchange(count), count);
  // Without a deadline: the memory of a piece that is being copied must not go.
  while (job_->copied.load(std::memory_order_acquire) < taken)
    waker_.Park(waits::kLongestSleepForWork);
  job_.reset();
  parts_.clear();
  places_.clear();
}

}  // namespace pelton
