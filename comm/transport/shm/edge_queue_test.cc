#include "comm/transport/shm/edge_queue.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace pelton::shm {
namespace {

// As shared memory begins: zeros.
struct Queue {
  Queue() : memory(new (std::align_val_t{64}) std::byte[sizeof(EdgeQueue)]()) {}
  ~Queue() { operator delete[](memory, std::align_val_t{64}); }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  EdgeQueue& get() const { return *reinterpret_cast<EdgeQueue*>(memory); }

  std::byte* memory;
};

bool PostText(EdgeSender& sender, const std::string& text, bool waits = false, int32_t tag = 0) {
  EdgeMessage message;
  message.tag = tag;
  message.count = text.size();
  message.place =
      text.size() > EdgeMessage::kPostBytes ? EdgeMessage::kInEntry : EdgeMessage::kInPost;
  return sender.Post(message, reinterpret_cast<const std::byte*>(text.data()), text.size(), waits);
}

// What the next post says; "-" if none has come.
std::string TakeText(EdgeReceiver& receiver) {
  const EdgeMessage* const message = receiver.Next();
  if (message == nullptr) return "-";
  const std::byte* const data =
      message->place == EdgeMessage::kInEntry ? receiver.tensor(message->entry) : message->bytes;
  std::string text(reinterpret_cast<const char*>(data), message->count);
  if (message->has_entry()) receiver.Answer(message->entry, EdgeQueue::kReceived, {});
  receiver.Pop();
  return text;
}

TEST(EdgeQueueTest, PostsComeInTheirOrder) {
  const Queue queue;
  EdgeSender sender(queue.get());
  EdgeReceiver receiver(queue.get());
  EXPECT_EQ(TakeText(receiver), "-");
  const std::string large(EdgeQueue::kEntryBytes, 'x');
  EXPECT_TRUE(PostText(sender, ""));
  EXPECT_TRUE(PostText(sender, std::string(EdgeMessage::kPostBytes, 'a')));
  EXPECT_TRUE(PostText(sender, large));
  EXPECT_EQ(TakeText(receiver), "");
  EXPECT_EQ(TakeText(receiver), std::string(EdgeMessage::kPostBytes, 'a'));
  EXPECT_EQ(TakeText(receiver), large);
  EXPECT_EQ(TakeText(receiver), "-");
}

TEST(EdgeQueueTest, AFullQueueTakesNothingUntilThereIsRoom) {
  const Queue queue;
  EdgeSender sender(queue.get());
  EdgeReceiver receiver(queue.get());
  for (uint32_t i = 0; i < EdgeQueue::kDepth; ++i) ASSERT_TRUE(PostText(sender, std::to_string(i)));
  EXPECT_FALSE(PostText(sender, "more"));
  EXPECT_EQ(TakeText(receiver), "0");
  EXPECT_TRUE(PostText(sender, "more"));
  for (uint32_t i = 1; i < EdgeQueue::kDepth; ++i) EXPECT_EQ(TakeText(receiver), std::to_string(i));
  EXPECT_EQ(TakeText(receiver), "more");
}

// A message that lies in an entry holds it although the post was taken out.
TEST(EdgeQueueTest, AnEntryThatIsNotAnsweredIsNotUsedAgain) {
  const Queue queue;
  EdgeSender sender(queue.get());
  EdgeReceiver receiver(queue.get());
  for (uint32_t i = 0; i < EdgeQueue::kDepth; ++i) {
    ASSERT_TRUE(PostText(sender, std::string(100, static_cast<char>('a' + i % 26))));
    ASSERT_NE(receiver.Next(), nullptr);
    receiver.Pop();
  }
  EXPECT_FALSE(PostText(sender, std::string(100, '?')));
  EXPECT_TRUE(PostText(sender, "in the post"));
  receiver.Answer(0, EdgeQueue::kReceived, {});
  EXPECT_TRUE(PostText(sender, std::string(100, '!')));
  EXPECT_EQ(TakeText(receiver), "in the post");
  EXPECT_EQ(TakeText(receiver), std::string(100, '!'));
}

TEST(EdgeQueueTest, AnAnswerSaysHowFarItsReaderIsAndWhatDiffers) {
  const Queue queue;
  EdgeSender sender(queue.get());
  EdgeReceiver receiver(queue.get());
  EdgeMessage message;
  message.place = EdgeMessage::kInMemory;
  message.where = {RegionId(3), 77};
  ASSERT_TRUE(sender.Post(message, nullptr, 1 << 20, /*waits=*/true));
  ASSERT_NE(receiver.Next(), nullptr);
  EXPECT_EQ(receiver.Next()->where.region, RegionId(3));
  EXPECT_EQ(receiver.Next()->where.offset, 77);
  EXPECT_EQ(sender.entry(message.entry).read_bytes.load(), 0);
  receiver.ShowRead(message.entry, 4096);
  EXPECT_EQ(sender.entry(message.entry).read_bytes.load(), 4096);
  EXPECT_EQ(sender.entry(message.entry).answer.load(), EdgeQueue::kPending);
  Operation reply;
  reply.count = 5;
  receiver.Answer(message.entry, EdgeQueue::kDifferent, reply);
  EXPECT_EQ(sender.entry(message.entry).answer.load(), EdgeQueue::kDifferent);
  EXPECT_EQ(sender.entry(message.entry).reply.Get().count, 5);
}

// One thread at each end, many times round the ring: what the thread sanitizer looks at.
TEST(EdgeQueueTest, EveryPostComesOnceAndWhole) {
  const Queue queue;
  constexpr size_t kPosts = 5000;
  const auto text_of = [](size_t i) {
    return std::string(i * 37 % 300, static_cast<char>('a' + i % 26));
  };
  std::thread thread([&] {
    EdgeSender sender(queue.get());
    for (size_t i = 0; i < kPosts; ++i) {
      while (!PostText(sender, text_of(i))) std::this_thread::yield();
    }
  });
  EdgeReceiver receiver(queue.get());
  for (size_t i = 0; i < kPosts; ++i) {
    while (receiver.Next() == nullptr) std::this_thread::yield();
    EXPECT_EQ(TakeText(receiver), text_of(i));
  }
  thread.join();
}

}  // namespace
}  // namespace pelton::shm
