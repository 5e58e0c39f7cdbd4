// A communicator that its backend knows of for as long as it lives, and that counts what it sends.
#ifndef PELTON_BACKEND_WATCHED_COMMUNICATOR_H_
#define PELTON_BACKEND_WATCHED_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "core/memory/device_queue.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Threads: as Communicator. Owns: the communicator it wraps.
class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  using OnClose = std::function<void(Communicator*)>;

  // `on_close` is called with this object before the wrapped one ends.
  WatchedCommunicator(std::unique_ptr<Communicator> wrapped, OnClose on_close)
      : ForwardingCommunicator(std::move(wrapped)), on_close_(std::move(on_close)) {}
  ~WatchedCommunicator() override { on_close_(this); }

  absl::StatusOr<Completion> Launch(const Operation& operation, Stream& stream) override {
    const uint64_t sent = SentBytesOf(operation, rank(), world_size());
    sent_bytes_.fetch_add(sent, std::memory_order_relaxed);
    return ForwardingCommunicator::Launch(operation, stream);
  }
  uint64_t piece_bytes() const override { return wrapped().piece_bytes(); }
  absl::StatusOr<Completion> LaunchInPieces(const Operation& operation, Pieces& pieces) override {
    sent_bytes_.fetch_add(SentBytesOf(operation, rank(), world_size()), std::memory_order_relaxed);
    return wrapped().LaunchInPieces(operation, pieces);
  }
  State Follow(Completion completion, Stream& stream) override {
    return wrapped().Follow(completion, stream);
  }
  // Of everything launched so far, as SentBytesOf counts. Threads: any.
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }

 private:
  const OnClose on_close_;
  std::atomic<uint64_t> sent_bytes_{0};
};

}  // namespace pelton

#endif  // PELTON_BACKEND_WATCHED_COMMUNICATOR_H_
