#include "core/actor/example/stations.h"

#include <utility>

#include "core/base/status.h"

namespace pelton::example {
namespace {

constexpr int kReadingsOfASensor = 10;

}  // namespace

Station::Station(int number, ActorRef<Office> office)
    : number_(number), office_(std::move(office)) {}

absl::Status Station::OnStart() {
  RETURN_IF_ERROR(office_.Send(Begins{}));
  (void)context().SendAfter(*this, absl::Minutes(1), Measure{});
  return absl::OkStatus();
}

absl::Status Station::Handle(Measure) {
  if (++readings_ == kReadingsOfASensor) return absl::UnavailableError("the sensor broke");
  // A full office loses a reading; the next one is as good.
  (void)office_.Send(Reading{number_, 10.0 + number_});
  (void)context().SendAfter(*this, absl::Minutes(1), Measure{});
  return absl::OkStatus();
}

absl::Status Office::OnStart() {
  for (int number = 0; number < station_count_; ++number) {
    SpawnChild<Station>(context(), {.on_failure = OnFailure::kRestart}, number,
                        context().RefTo(*this));
  }
  return absl::OkStatus();
}

void Office::Handle(Reading reading) { latest_[reading.station] = reading.degrees; }

void Office::Handle(Begins) { ++begun_; }

void Office::Handle(AskMean question) {
  if (latest_.empty()) return question.reply.Set(absl::NotFoundError("no reading yet"));
  double sum = 0;
  for (const auto& [station, degrees] : latest_) sum += degrees;
  question.reply.Set(sum / static_cast<double>(latest_.size()));
}

void Office::Handle(AskBroken question) { question.reply.Set(begun_ - station_count_); }

ActorRef<Office> OpenOffice(Executor& executor, int station_count) {
  SpawnOptions options;
  options.name = "office";
  options.supervision.max_restarts = 100;
  options.supervision.period = absl::Minutes(1);
  return Spawn<Office>(executor, std::move(options), station_count);
}

}  // namespace pelton::example
