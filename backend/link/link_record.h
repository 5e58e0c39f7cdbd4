// What travels on a communicator's connection between a trainer and its daemon.
#ifndef PELTON_BACKEND_LINK_LINK_RECORD_H_
#define PELTON_BACKEND_LINK_LINK_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/pipeline/operation.h"

namespace pelton {

// Both ends are of one machine, so that fields have its byte order. A text may follow the record.
struct LinkRecord {
  enum Kind : uint32_t {
    // From the trainer:
    kLaunch = 1,      // `operation`, whose memory lies in registered regions, under `ticket`
    kAbort = 2,       // with `code` and the text
    kRegister = 3,    // the region `ticket` of the trainer, whose descriptor comes along
    kDeregister = 4,  // the region `ticket`
    kFindSender = 5,  // of a message with the tag of `operation`
    kClose = 6,       // in good order; nothing follows
    // The same as kLaunch, of an allreduce whose source region is a ring: see piece_ring.h.
    kLaunchInPieces = 7,
    kFilled = 8,  // a ring has what the daemon waits for
    // From the daemon:
    // The launch `ticket`, with `code` and the text. `operation.target_region` is 0, or that of the
    // launch where a peer that stands still may yet write there, unless the trainer takes it back.
    kDone = 16,
    kFound = 17,    // answers kFindSender: `operation.peer`, or kNoPeer; or `code` and the text
    kAborted = 18,  // everything in flight and later fails with `code` and the text
    kReduced = 19,  // a ring has what the trainer waits for
  };
  static constexpr size_t kMaxTextBytes = 4096;

  uint32_t kind = 0;
  int32_t code = 0;  // of absl::StatusCode
  uint64_t ticket = 0;
  Operation operation;
};
static_assert(sizeof(LinkRecord) == 80, "part of the wire format");
static_assert(std::is_trivially_copyable_v<LinkRecord>);

// A record with its text. Threads: a value. Owns: the text.
struct ParsedRecord {
  LinkRecord record;
  std::string text;

  // What `code` and the text say.
  absl::Status status() const;
};

// The record as it is sent; a text that is too long is cut.
std::string EncodeRecord(const LinkRecord& record, absl::string_view text = "");
// With the code and text of `status`.
std::string EncodeRecord(LinkRecord record, const absl::Status& status);
// Errors: InvalidArgument: not of a record's size, a kind that is none, an operation whose kind,
// dtype or reduction is none, an overlong text.
absl::StatusOr<ParsedRecord> DecodeRecord(absl::string_view payload);

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_LINK_RECORD_H_
