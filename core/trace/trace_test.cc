#include "core/trace/trace.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace pelton {
namespace {

TraceEvent EventOf(int64_t value) {
  TraceEvent event;
  event.name = "event";
  event.bucket = 3;
  event.round = 7;
  event.value = value;
  return event;
}

TEST(TracerTest, RecordsNothingWhileOff) {
  Tracer tracer(8);
  tracer.Count("ready", 1);
  EXPECT_EQ(tracer.recorded(), 0u);
  EXPECT_TRUE(tracer.Snapshot().empty());
}

TEST(TracerTest, KeepsTheFieldsOfACounter) {
  Tracer tracer(8);
  tracer.Enable(true);
  tracer.Count("ready", -5, 3, 7);
  const std::vector<TraceEvent> events = tracer.Snapshot();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].name, "ready");
  EXPECT_EQ(events[0].kind, TraceKind::kCounter);
  EXPECT_EQ(events[0].bucket, 3);
  EXPECT_EQ(events[0].round, 7u);
  EXPECT_EQ(events[0].value, -5);
  EXPECT_GT(events[0].begin_ns, 0);
}

// As of a tensor or a model, whose name goes before the trace is read.
TEST(TracerTest, KeepsNamesThatAreGone) {
  Tracer tracer(8);
  tracer.Enable(true);
  std::string name = "layer.0.weight";
  tracer.Count(name, 1);
  TraceEvent event = EventOf(2);
  event.name = name;
  tracer.Record(event);
  name.assign(name.size(), '?');
  for (const TraceEvent& kept : tracer.Snapshot()) EXPECT_EQ(kept.name, "layer.0.weight");
}

TEST(TracerTest, KeepsTheLastEventsInOrder) {
  Tracer tracer(4);
  for (int64_t i = 0; i < 10; ++i) tracer.Record(EventOf(i));
  std::vector<int64_t> values;
  for (const TraceEvent& event : tracer.Snapshot()) values.push_back(event.value);
  EXPECT_EQ(values, (std::vector<int64_t>{6, 7, 8, 9}));
  EXPECT_EQ(tracer.recorded(), 10u);
}

TEST(TracerTest, SpanLastsFromConstructionToEnd) {
  Tracer::Get().Enable(true);
  { const TraceSpan span("exchange", 2, 9); }
  Tracer::Get().Enable(false);
  const std::vector<TraceEvent> events = Tracer::Get().Snapshot();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().name, "exchange");
  EXPECT_EQ(events.back().bucket, 2);
  EXPECT_GE(events.back().duration_ns, 0);
}

TEST(TracerTest, EventsOfManyThreadsAreNeverMixed) {
  Tracer tracer(64);
  std::vector<std::thread> writers;
  for (int64_t writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&tracer, writer] {
      for (int64_t i = 0; i < 20000; ++i) {
        TraceEvent event = EventOf(writer * 1000000 + i);
        event.begin_ns = event.value;
        event.duration_ns = event.value;
        tracer.Record(event);
      }
    });
  }
  for (int i = 0; i < 200; ++i) {
    for (const TraceEvent& event : tracer.Snapshot()) {
      EXPECT_EQ(event.begin_ns, event.value);
      EXPECT_EQ(event.duration_ns, event.value);
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(tracer.recorded(), 80000u);
}

}  // namespace
}  // namespace pelton
