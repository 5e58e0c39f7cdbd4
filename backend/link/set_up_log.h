// What a trainer was answered while it set itself up, for another one in its place.
#ifndef PELTON_BACKEND_LINK_SET_UP_LOG_H_
#define PELTON_BACKEND_LINK_SET_UP_LOG_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/pipeline/operation.h"
#include "proto/link.pb.h"

namespace pelton {

// The operations that a trainer has launched on one communicator during its set-up, and what they
// have brought. An heir that launches the same ones gets the same, and no peer takes part.
// Threads: one at a time. Owns: copies.
class OperationLog {
 public:
  // More than this is not kept, so that the trainer can have no heir. It may never say that its
  // set-up is over, and the daemon must not grow with its training: this is what a script without
  // Snapshots costs on each communicator, and more than the weights of most models have.
  static constexpr size_t kMostBytes = size_t{512} << 20;

  explicit OperationLog(size_t most_bytes = kMostBytes) : most_bytes_(most_bytes) {}

  // Its number, for Ended.
  size_t Add(const Operation& operation);
  // The operation `number` has ended well, with `size_bytes` at `target`.
  void Ended(size_t number, const std::byte* target, size_t size_bytes);
  // Something happened that an heir could not be given once more.
  void Spoil() { is_whole_ = false; }

  size_t size() const { return entries_.size(); }
  bool is_whole() const { return is_whole_ && ended_ == entries_.size(); }
  // Null: `operation` is another one than `number`, wherever its memory lies, or has not this size.
  const std::vector<std::byte>* Find(size_t number, const Operation& operation,
                                     size_t size_bytes) const;
  // Of `number`, for people.
  std::string Describe(size_t number) const;

 private:
  struct Entry {
    Operation operation;
    std::vector<std::byte> target;
  };
  const size_t most_bytes_;
  std::vector<Entry> entries_;
  size_t ended_ = 0;
  size_t size_bytes_ = 0;
  bool is_whole_ = true;
};

// The calls of all connections, and how far the training has come that follows. A trainer that has
// died may have left some under way, which end while another one is attached: they are not its.
// Threads: one at a time. Owns: copies.
class SetUpLog {
 public:
  static constexpr size_t kMostBytes = size_t{64} << 20;

  // A trainer has attached, under a number above 0: the first of its line, or an heir, whose calls
  // are answered from here.
  void Begin(uint64_t attachment, bool is_heir);
  // What the same call was answered, once for each time; nothing: it is to be made.
  std::optional<proto::LinkReply> Replay(const proto::LinkCall& call);
  // A call of the trainer `attachment` goes to the others; it ends with Made.
  void Makes(uint64_t attachment);
  void Made(uint64_t attachment, const proto::LinkCall& call, const proto::LinkReply& reply);
  // The set-up is over.
  void End() { is_logged_ = false; }
  // Something happened that an heir could not be given once more.
  void Spoil() { is_whole_ = false; }
  // All that an heir needs of the trainer's own is in a snapshot.
  void Keep();
  // It is being copied beside training; KeepBegun: it counts, as it was at the last BeginKeep,
  // since which no Keep was. Without one that does nothing.
  void BeginKeep() { calls_until_begun_ = calls_since_; }
  void KeepBegun();

  bool is_logged() const { return is_logged_; }
  bool has_kept() const { return has_kept_; }
  // Whether an heir can be where the trainer is, as far as calls are concerned. What is under way
  // may have reached the others, and its answer nobody has.
  bool is_whole() const {
    return is_whole_ && under_way_ == 0 && (!has_kept_ || calls_since_ == 0);
  }

 private:
  struct Entry {
    std::string request;
    proto::LinkReply reply;
    bool is_replayed = false;
  };
  std::vector<Entry> entries_;
  size_t size_bytes_ = 0;
  bool is_logged_ = false;
  bool replays_ = false;
  bool is_whole_ = true;
  bool has_kept_ = false;
  uint64_t attachment_ = 0;
  uint64_t under_way_ = 0;
  uint64_t calls_since_ = 0;                   // what is in the last snapshot that counts
  std::optional<uint64_t> calls_until_begun_;  // of them, in the one that is being copied
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_SET_UP_LOG_H_
