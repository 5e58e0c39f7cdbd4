#include "backend/link/set_up_log.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton {
namespace {

// An heir's memory lies elsewhere, and its runtime numbers the operation later.
Operation WithoutPlaces(Operation operation) {
  operation.set_source({});
  operation.set_target({});
  operation.sequence = 0;
  operation.communicator = CommunicatorId();
  operation.generation = Generation();
  return operation;
}

bool IsSame(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.reduce_op == b.reduce_op &&
         a.flags == b.flags && a.peer == b.peer && a.count == b.count && a.tag == b.tag;
}

std::string Key(proto::LinkCall call) {
  call.clear_timeout_us();
  return call.SerializeAsString();
}

}  // namespace

size_t OperationLog::Add(const Operation& operation) {
  if (!is_whole_) return entries_.size();
  entries_.push_back({WithoutPlaces(operation), {}});
  return entries_.size() - 1;
}

void OperationLog::Ended(size_t number, const std::byte* target, size_t size_bytes) {
  if (!is_whole_) return;
  ++ended_;
  size_bytes_ += sizeof(Entry) + size_bytes;
  if (size_bytes_ > most_bytes_) {
    is_whole_ = false;
    return std::vector<Entry>().swap(entries_);
  }
  if (size_bytes > 0) entries_[number].target.assign(target, target + size_bytes);
}

const std::vector<std::byte>* OperationLog::Find(size_t number, const Operation& operation,
                                                 size_t size_bytes) const {
  const Entry& entry = entries_[number];
  const bool is_same = IsSame(entry.operation, operation) && entry.target.size() == size_bytes;
  return is_same ? &entry.target : nullptr;
}

std::string OperationLog::Describe(size_t number) const {
  return pelton::Describe(entries_[number].operation);
}

void SetUpLog::Begin(uint64_t attachment, bool is_heir) {
  attachment_ = attachment;
  replays_ = is_heir;
  is_logged_ = !is_heir;
  under_way_ = calls_since_ = 0;
  calls_until_begun_.reset();
  if (is_heir) {
    for (Entry& entry : entries_) entry.is_replayed = false;
    return;
  }
  entries_.clear();
  size_bytes_ = 0;
  is_whole_ = true;
  has_kept_ = false;
}

std::optional<proto::LinkReply> SetUpLog::Replay(const proto::LinkCall& call) {
  if (!replays_) return std::nullopt;
  const std::string request = Key(call);
  for (Entry& entry : entries_) {
    if (entry.is_replayed || entry.request != request) continue;
    entry.is_replayed = true;
    return entry.reply;
  }
  return std::nullopt;
}

void SetUpLog::Makes(uint64_t attachment) {
  if (attachment == attachment_) ++under_way_;
}

void SetUpLog::Made(uint64_t attachment, const proto::LinkCall& call,
                    const proto::LinkReply& reply) {
  if (attachment != attachment_) return;
  --under_way_;
  ++calls_since_;
  if (!is_logged_) return;
  Entry entry{Key(call), reply};
  size_bytes_ += entry.request.size() + entry.reply.ByteSizeLong();
  if (size_bytes_ > kMostBytes) is_whole_ = false;
  if (is_whole_) entries_.push_back(std::move(entry));
}

void SetUpLog::Keep() {
  is_logged_ = replays_ = false;
  has_kept_ = true;
  calls_since_ = 0;
  calls_until_begun_.reset();
}

void SetUpLog::KeepBegun() {
  if (!calls_until_begun_.has_value()) return;
  const uint64_t later = calls_since_ - *calls_until_begun_;
  Keep();
  calls_since_ = later;
}

}  // namespace pelton
