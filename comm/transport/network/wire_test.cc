#include "comm/transport/network/wire.h"

#include <set>

#include "gtest/gtest.h"

namespace pelton::network {
namespace {

Members MembersOf(const std::string& token, int32_t rank, uint32_t id = 1,
                  uint32_t generation = 1) {
  return Members(token, CommunicatorId(id), Group::World(WorldSize(3), Generation(generation)),
                 Rank(rank));
}

TEST(WireTest, EveryPathHasAKeyOfItsOwn) {
  std::set<MessageKey> keys;
  for (const char* token : {"a", "b", ""}) {
    for (uint32_t id : {1u, 2u}) {
      for (uint32_t generation : {1u, 2u}) {
        for (int32_t from : {0, 1, 11}) {
          for (int32_t to : {0, 1, 11}) {
            keys.insert(DeriveKey(
                token, {CommunicatorId(id), Generation(generation), Rank(from), Rank(to)}));
          }
        }
      }
    }
  }
  EXPECT_EQ(keys.size(), 3u * 2 * 2 * 3 * 3);
}

TEST(WireTest, OnlyTheNamedMemberOfTheSameCommunicatorIsGenuine) {
  const Members receiver = MembersOf("token", 0);
  Header header = MembersOf("token", 1).MakeHeader(MessageType::kHello, 0);
  EXPECT_TRUE(receiver.IsGenuine(header));
  header.source = 2;
  EXPECT_FALSE(receiver.IsGenuine(header)) << "another rank's name";
  header.source = 3;
  EXPECT_FALSE(receiver.IsGenuine(header)) << "no member";
  EXPECT_FALSE(receiver.IsGenuine(MembersOf("token", 1).MakeHeader(MessageType::kHello, 2)))
      << "for another rank";
  EXPECT_FALSE(receiver.IsGenuine(MembersOf("tokem", 1).MakeHeader(MessageType::kHello, 0)));
  EXPECT_FALSE(receiver.IsGenuine(MembersOf("token", 1, 2).MakeHeader(MessageType::kHello, 0)));
  EXPECT_FALSE(receiver.IsGenuine(MembersOf("token", 1, 1, 2).MakeHeader(MessageType::kHello, 0)));
  EXPECT_FALSE(receiver.IsGenuine(receiver.MakeHeader(MessageType::kHello, 0))) << "itself";
  EXPECT_FALSE(receiver.IsGenuine(Header{}));
}

TEST(WireTest, AReasonKeepsItsCodeAndNamesTheRank) {
  Header header;
  const std::string text = EncodeReason(absl::InternalError("the disk is full"), &header);
  EXPECT_EQ(header.type, MessageType::kAbort);
  EXPECT_EQ(DecodeReason(header, text, Rank(4)),
            absl::InternalError("rank 4 aborted: the disk is full"));
  header.flags = kIsDeath;
  EXPECT_EQ(DecodeReason(header, "rank 2 is lost", Rank(4)), absl::InternalError("rank 2 is lost"));
  header.operation.count = 12345;
  EXPECT_EQ(DecodeReason(header, text, Rank(4)).code(), absl::StatusCode::kUnknown);
}

}  // namespace
}  // namespace pelton::network
