#include "backend/link/link_record.h"

#include <gtest/gtest.h>

#include <string>

#include "core/memory/dtype.h"

namespace pelton {
namespace {

LinkRecord LaunchOf(uint64_t ticket) {
  LinkRecord record;
  record.kind = LinkRecord::kLaunch;
  record.ticket = ticket;
  record.operation.kind = OperationKind::kAllReduce;
  record.operation.count = 7;
  return record;
}

TEST(LinkRecordTest, ComesBackAsItWasSent) {
  const auto parsed = DecodeRecord(EncodeRecord(LaunchOf(3), absl::AbortedError("why")));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->record.ticket, 3u);
  EXPECT_EQ(parsed->record.operation.count, 7u);
  EXPECT_EQ(parsed->status(), absl::AbortedError("why"));
}

TEST(LinkRecordTest, CutsATextThatIsTooLong) {
  const std::string text(2 * LinkRecord::kMaxTextBytes, 'x');
  const auto parsed = DecodeRecord(EncodeRecord(LaunchOf(1), text));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->text.size(), LinkRecord::kMaxTextBytes);
}

TEST(LinkRecordTest, ACodeThatIsNoneIsAnUnknownError) {
  LinkRecord record = LaunchOf(1);
  record.code = 4711;
  const auto parsed = DecodeRecord(EncodeRecord(record, "text"));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->status().code(), absl::StatusCode::kUnknown);
}

TEST(LinkRecordTest, RefusesWhatIsNoRecordAndNamesTheField) {
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord("short").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeRecord(std::string(8192, 'x')).status()));
  LinkRecord record = LaunchOf(1);
  record.kind = 99;
  EXPECT_NE(DecodeRecord(EncodeRecord(record)).status().message().find("kind 99"),
            std::string::npos);
  record = LaunchOf(1);
  record.operation.kind = static_cast<OperationKind>(77);
  EXPECT_NE(DecodeRecord(EncodeRecord(record)).status().message().find("operation.kind: 77"),
            std::string::npos);
  record = LaunchOf(1);
  record.operation.dtype = static_cast<DType>(kDTypeCount);
  EXPECT_NE(DecodeRecord(EncodeRecord(record)).status().message().find("operation.dtype"),
            std::string::npos);
  record = LaunchOf(1);
  record.operation.reduce_op = static_cast<ReduceOp>(5);
  EXPECT_NE(DecodeRecord(EncodeRecord(record)).status().message().find("operation.reduce_op: 5"),
            std::string::npos);
}

// Whatever the bytes are, the answer is a record or an error.
TEST(LinkRecordTest, TakesAnyBytes) {
  std::string bytes = EncodeRecord(LaunchOf(9));
  int refused = 0;
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string changed = bytes;
      changed[at] = value;
      if (!DecodeRecord(changed).ok()) ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace pelton
