#include "core/trace/trace_names.h"

#include "absl/hash/hash.h"

namespace pelton {
namespace {

// From the place that a name's hash says. A full set costs no more than that per event.
constexpr size_t kMostProbes = 64;

// What stands in `place` after `name` was offered for it: the name unless another was there first.
const std::string& Offer(std::atomic<const std::string*>& place, std::string_view name) {
  const std::string* held = place.load(std::memory_order_acquire);
  if (held != nullptr) return *held;
  const auto* const copy = new std::string(name);
  if (place.compare_exchange_strong(held, copy, std::memory_order_acq_rel)) return *copy;
  delete copy;
  return *held;
}

}  // namespace

TraceNames::~TraceNames() {
  for (const std::atomic<const std::string*>& place : places_) delete place.load();
}

const std::string& TraceNames::Keep(std::string_view name) {
  const size_t first = absl::HashOf(name);
  for (size_t probe = 0; probe < kMostProbes; ++probe) {
    const std::string& held = Offer(places_[(first + probe) % kCapacity], name);
    if (held == name) return held;
  }
  return further_;
}

}  // namespace pelton
