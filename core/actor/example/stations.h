// A small program of actors: weather stations, and an office that looks after them.
#ifndef PELTON_CORE_ACTOR_EXAMPLE_STATIONS_H_
#define PELTON_CORE_ACTOR_EXAMPLE_STATIONS_H_

#include <map>

#include "core/actor/runtime.h"

namespace pelton::example {

struct Reading {
  int station;
  double degrees;
};
struct Begins {};
struct AskMean {
  Promise<double> reply;
};
struct AskBroken {
  Promise<int> reply;
};

class Office;

// Measures once a minute. Its sensor breaks at the tenth time, which ends it.
// Threads: as every actor. Owns: its sensor.
class Station final : public Actor {
 public:
  struct Measure {};

  Station(int number, ActorRef<Office> office);
  absl::Status OnStart() override;
  absl::Status Handle(Measure);

 private:
  const int number_;
  const ActorRef<Office> office_;
  int readings_ = 0;
};

// Starts the stations, restarts those that break, and knows the latest reading of each.
// Threads: as every actor. Owns: its stations.
class Office final : public Actor {
 public:
  explicit Office(int station_count) : station_count_(station_count) {}
  absl::Status OnStart() override;

  void Handle(Reading reading);
  void Handle(AskMean question);
  // How many sensors broke.
  void Handle(AskBroken question);
  // A station has begun, with a new sensor.
  void Handle(Begins begins);

 private:
  const int station_count_;
  std::map<int, double> latest_;
  int begun_ = 0;
};

// An office that gives up only if stations break all the time.
ActorRef<Office> OpenOffice(Executor& executor, int station_count);

}  // namespace pelton::example

#endif  // PELTON_CORE_ACTOR_EXAMPLE_STATIONS_H_
