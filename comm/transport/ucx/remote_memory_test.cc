// Puts and gets between two processes.
#include "comm/transport/ucx/remote_memory.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "comm/transport/shm/test_processes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace pelton::ucx {
namespace {

using ::testing::IsEmpty;

absl::Time Soon() { return absl::Now() + absl::Seconds(30); }

// Counts what comes in. Threads: one. Owns: nothing.
class Counter final : public network::Receiver {
 public:
  bool Receive(const network::Header&, const network::Payload&) override {
    ++messages;
    return false;
  }
  void Lose(int, const absl::Status& why) override { loss = why; }
  int messages = 0;
  absl::Status loss;
};

// A process of a pair: its worker is connected to the other's, whose memory is attached.
struct End {
  Counter counter;
  std::unique_ptr<Context> context;
  std::vector<int32_t> exposed;
  std::unique_ptr<ExposedMemory> memory;
  std::unique_ptr<UcxWorker> worker;
  std::unique_ptr<RemoteMemory> remote;
};

absl::StatusOr<std::string> Swap(const TransportOptions& options, const std::string& mine) {
  auto all = options.bootstrap->AllGather("", absl::WebSafeBase64Escape(mine), Soon());
  if (!all.ok()) return all.status();
  std::string theirs;
  absl::WebSafeBase64Unescape((*all)[static_cast<size_t>(1 - options.rank.value())], &theirs);
  return theirs;
}

absl::Status MakeEnd(const TransportOptions& options, size_t count, End* end) {
  auto context = Context::Make("");
  if (!context.ok()) return context.status();
  end->context = *std::move(context);
  auto worker = UcxWorker::Create(*end->context, end->counter, 2);
  if (!worker.ok()) return worker.status();
  end->worker = *std::move(worker);
  end->exposed.assign(count, options.rank.value());
  auto memory = ExposedMemory::Make(*end->context, end->exposed.data(), count * sizeof(int32_t));
  if (!memory.ok()) return memory.status();
  end->memory = *std::move(memory);
  const int peer = 1 - options.rank.value();
  const auto address = Swap(options, end->worker->address());
  if (!address.ok()) return address.status();
  const absl::Status connected = end->worker->Connect(peer, *address);
  if (!connected.ok()) return connected;
  const auto key = Swap(options, end->memory->key());
  if (!key.ok()) return key.status();
  auto remote = RemoteMemory::Attach(*end->worker, peer, *key);
  if (!remote.ok()) return remote.status();
  end->remote = *std::move(remote);
  return absl::OkStatus();
}

absl::Status Finish(End& end, absl::StatusOr<Transfer> transfer) {
  if (!transfer.ok()) return transfer.status();
  const absl::Time until = Soon();
  while (!transfer->IsDone()) {
    end.worker->Progress();
    if (absl::Now() > until) return absl::DeadlineExceededError("the transfer");
  }
  return transfer->status();
}

// Progresses until the peer has sent its n-th message.
bool AwaitMessages(End& end, int count) {
  const absl::Time until = Soon();
  while (end.counter.messages < count && absl::Now() < until) end.worker->Progress();
  return end.counter.messages >= count;
}

// Rank 0 puts and gets; rank 1 only progresses, and sees the bytes when rank 0 says so.
std::string PutAndGet(const TransportOptions& options, size_t count) {
  End end;
  const absl::Status made = MakeEnd(options, count, &end);
  if (!made.ok()) return made.ToString();
  const size_t half = count / 2;
  if (options.rank == Rank(1)) {
    if (!AwaitMessages(end, 1)) return "no news of the put";
    for (size_t i = 0; i < count; ++i) {
      if (end.exposed[i] != (i < half ? 1 : 7)) return absl::StrCat("put: element ", i);
    }
    end.worker->Post(0, network::Header{});
    return AwaitMessages(end, 2) ? "" : "no farewell";
  }
  const std::vector<int32_t> source(count - half, 7);
  std::vector<int32_t> target(count, -1);
  const size_t bytes = source.size() * sizeof(int32_t);
  absl::Status status = Finish(end, end.remote->Put(source.data(), bytes, half * sizeof(int32_t)));
  if (status.ok()) status = Finish(end, end.remote->Flush());
  end.worker->Post(1, network::Header{});
  if (!AwaitMessages(end, 1)) return "no answer";
  if (status.ok()) status = Finish(end, end.remote->Get(target.data(), count * 4, 0));
  end.worker->Post(1, network::Header{});
  while (!end.worker->Flush()) end.worker->Progress();
  if (!status.ok()) return status.ToString();
  for (size_t i = 0; i < count; ++i) {
    if (target[i] != (i < half ? 1 : 7)) return absl::StrCat("got: element ", i, ": ", target[i]);
  }
  return "";
}

TEST(RemoteMemoryTest, PutsAndGetsOfAllSizes) {
  for (const size_t count : {size_t{2}, size_t{1000}, size_t{100'001}, size_t{8} << 20}) {
    shm::Processes processes(
        2, [count](const TransportOptions& options) { return PutAndGet(options, count); });
    EXPECT_THAT(processes.JoinAll(), IsEmpty()) << count;
  }
}

TEST(RemoteMemoryTest, WhatLeavesTheMemoryIsRefused) {
  shm::Processes processes(2, [](const TransportOptions& options) -> std::string {
    End end;
    const absl::Status made = MakeEnd(options, 10, &end);
    if (!made.ok()) return made.ToString();
    int32_t value = 0;
    for (const size_t offset : {size_t{37}, size_t{40}, size_t{41}, ~size_t{0}}) {
      if (!absl::IsOutOfRange(end.remote->Put(&value, 4, offset).status())) return "put";
      if (!absl::IsOutOfRange(end.remote->Get(&value, 4, offset).status())) return "get";
    }
    for (const std::string& key : {std::string(), std::string(30, 'x')}) {
      const int peer = 1 - options.rank.value();
      if (!absl::IsInvalidArgument(RemoteMemory::Attach(*end.worker, peer, key).status())) {
        return "attach";
      }
    }
    return Swap(options, "").ok() ? "" : "no end";
  });
  EXPECT_THAT(processes.JoinAll(), IsEmpty());
}

}  // namespace
}  // namespace pelton::ucx
