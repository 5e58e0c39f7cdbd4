// The records on a communicator's connection between a trainer and its daemon.
#include "backend/link/link_record.h"

#include "absl/status/statusor.h"
#include "comm/transport/operation_check.h"
#include "core/base/check.h"
#include "tests/fuzz/input.h"

namespace pelton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view payload = fuzz::Input(data, size).TakeRest();
  const absl::StatusOr<ParsedRecord> parsed = DecodeRecord(payload);
  if (!parsed.ok()) return 0;
  PELTON_CHECK(EncodeRecord(parsed->record, parsed->text) == payload);
  PELTON_CHECK(parsed->status().ok() == (parsed->record.code == 0));
  // What the daemon does with it next.
  (void)CheckOperation(parsed->record.operation, Rank(0), WorldSize(2));
  (void)Describe(parsed->record.operation);
  return 0;
}

}  // namespace pelton
