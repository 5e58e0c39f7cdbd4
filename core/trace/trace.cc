#include "core/trace/trace.h"

#include <algorithm>
#include <chrono>

#include "absl/hash/hash.h"
#include "absl/numeric/bits.h"

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

namespace {

constexpr size_t kDefaultCapacity = size_t{1} << 14;

uint64_t ThreadNumber() {
  static std::atomic<uint64_t> next{1};
  thread_local const uint64_t number = next.fetch_add(1, std::memory_order_relaxed);
  return number;
}

// Kind, bucket and thread in one word.
uint64_t Pack(const TraceEvent& event, uint64_t thread) {
  return static_cast<uint64_t>(static_cast<uint32_t>(event.bucket)) | ((thread & 0xFFFFFF) << 32) |
         (static_cast<uint64_t>(event.kind) << 56);
}

}  // namespace

Tracer::Tracer(size_t capacity)
    : mask_(absl::bit_ceil(std::max<size_t>(capacity, 1)) - 1), entries_(new Entry[mask_ + 1]) {}

Tracer& Tracer::Get() {
  static Tracer* const tracer = new Tracer(kDefaultCapacity);  // outlives every thread
  return *tracer;
}

int64_t Tracer::NowNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Tracer::Record(const TraceEvent& event) {
  const uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  Entry& entry = entries_[number & mask_];
  // Even: written by the event numbered sequence / 2 - 1. The claim fails when that writer is still
  // at it, or a later one has been here.
  uint64_t sequence = entry.sequence.load(std::memory_order_relaxed);
  if (sequence % 2 != 0 || sequence > number * 2) return;
  if (!entry.sequence.compare_exchange_strong(sequence, number * 2 + 1,
                                              std::memory_order_acquire)) {
    return;
  }
  const std::array<uint64_t, kWords> words = {reinterpret_cast<uint64_t>(&names_.Keep(event.name)),
                                              Pack(event, ThreadNumber()),
                                              event.round,
                                              static_cast<uint64_t>(event.begin_ns),
                                              static_cast<uint64_t>(event.duration_ns),
                                              static_cast<uint64_t>(event.value)};
  // Released word by word: a reader that sees one of them sees the odd sequence as well.
  for (size_t i = 0; i < kWords; ++i) entry.words[i].store(words[i], std::memory_order_release);
  entry.sequence.store(number * 2 + 2, std::memory_order_release);
}

void Tracer::RecordCount(std::string_view name, int64_t value, int32_t bucket, uint64_t round) {
  TraceEvent event;
  event.name = name;
  event.kind = TraceKind::kCounter;
  event.bucket = bucket;
  event.round = round;
  event.begin_ns = NowNanos();
  event.value = value;
  Record(event);
}

std::vector<TraceEvent> Tracer::Snapshot() const {
  const uint64_t end = next_.load(std::memory_order_acquire);
  const uint64_t begin = end > mask_ + 1 ? end - (mask_ + 1) : 0;
  std::vector<TraceEvent> events;
  for (uint64_t number = begin; number < end; ++number) {
    const Entry& entry = entries_[number & mask_];
    if (entry.sequence.load(std::memory_order_acquire) != number * 2 + 2) continue;
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = entry.words[i].load(std::memory_order_acquire);
    if (entry.sequence.load(std::memory_order_relaxed) != number * 2 + 2) continue;
    TraceEvent& event = events.emplace_back();
    event.name = *reinterpret_cast<const std::string*>(words[0]);
    event.bucket = static_cast<int32_t>(static_cast<uint32_t>(words[1]));
    event.thread = (words[1] >> 32) & 0xFFFFFF;
    event.kind = static_cast<TraceKind>(words[1] >> 56);
    event.round = words[2];
    event.begin_ns = static_cast<int64_t>(words[3]);
    event.duration_ns = static_cast<int64_t>(words[4]);
    event.value = static_cast<int64_t>(words[5]);
  }
  return events;
}

void TraceSpan::End() {
  TraceEvent event;
  event.name = name_;
  event.bucket = bucket_;
  event.round = round_;
  event.begin_ns = begin_ns_;
  event.duration_ns = Tracer::NowNanos() - begin_ns_;
  Tracer::Get().Record(event);
}

}  // namespace pelton
