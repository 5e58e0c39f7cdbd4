// One rank's part in an exchange: its memory, its launches and the check of what came of them.
#ifndef PELTON_COMM_TRANSPORT_CONFORMANCE_RANK_EXCHANGE_H_
#define PELTON_COMM_TRANSPORT_CONFORMANCE_RANK_EXCHANGE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/communicator.h"
#include "comm/transport/conformance/exchange.h"

namespace pelton::conformance {

// A piece of memory from which tensors are cut, each with guard bytes around it.
// Threads: one at a time. Owns: its region or its private memory.
class Arena {
 public:
  Arena(size_t size_bytes, bool is_region);

  // `size_bytes` at an address that misses a cache line by `offset_bytes`.
  std::byte* Allocate(size_t size_bytes, size_t offset_bytes);
  // "" if nothing was written beside the tensors.
  std::string CheckGuards() const;
  // Frees all tensors.
  void Reset();
  // Null for private memory.
  const Region* region() const { return region_.get(); }

 private:
  struct Guarded {
    std::byte* begin;
    std::byte* end;
  };
  std::unique_ptr<Region> region_;
  std::vector<std::byte> private_;
  std::byte* base_;
  size_t size_bytes_;
  size_t used_bytes_ = 0;
  std::vector<Guarded> guards_;
};

// Threads: one at a time. Owns: a rank's memory of both sorts.
struct RankMemory {
  explicit RankMemory(size_t size_bytes) : region(size_bytes, true), own(size_bytes, false) {}
  Arena region;
  Arena own;
};

// Threads: one at a time. Owns: nothing; exchange and memory outlive it.
class RankExchange {
 public:
  RankExchange(const Exchange& exchange, Rank rank, RankMemory& memory);

  absl::Status Launch(Communicator& communicator);
  absl::Status AwaitAll(Communicator& communicator, absl::Time deadline);
  // "" if the result is right, bitwise or but for the rounding of reductions, and a source that is
  // not the target is as it was.
  std::string Check(bool bitwise = true) const;
  std::vector<std::byte> Result() const;
  const std::vector<Completion>& completions() const { return completions_; }

 private:
  void Place(Arena& arena);
  Operation MakeOperation() const;

  const Exchange& exchange_;
  const size_t rank_;
  size_t chunk_bytes_;
  std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  std::vector<Completion> completions_;
};

}  // namespace pelton::conformance

#endif  // PELTON_COMM_TRANSPORT_CONFORMANCE_RANK_EXCHANGE_H_
