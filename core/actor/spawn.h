// Bringing actors to life.
#ifndef PELTON_CORE_ACTOR_SPAWN_H_
#define PELTON_CORE_ACTOR_SPAWN_H_

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/actor/actor.h"
#include "core/actor/actor_cell.h"
#include "core/actor/actor_ref.h"
#include "core/actor/context.h"
#include "core/actor/executor.h"
#include "core/actor/ref_ptr.h"
#include "core/actor/spawn_options.h"
#include "core/actor/supervisor.h"
#include "core/base/check.h"

namespace pelton {
namespace internal {

// How a child comes to its parent: in one of the parent's turns, or by a message.
struct AdoptNow {
  static void Run(ActorCell& parent, ActorCell& child) { FamilyOf(parent).Adopt(child); }
};
struct AdoptLater {
  RefPtr<ActorCell> child;
  void operator()(ActorCell& parent) { FamilyOf(parent).Adopt(*child); }
  void OnDead() {
    if (child->ends_with_parent()) child->RequestEnd(absl::InfinitePast());
  }
  static void Run(ActorCell& parent, ActorCell& child) {
    parent.Post(NewSystemCall(AdoptLater{RefPtr<ActorCell>::Share(&child)}));
  }
};

template <typename Adopt, typename A>
ActorRef<A> SpawnCell(Executor& executor, ActorCell* parent, SpawnOptions options,
                      std::unique_ptr<A> actor, ActorFactory factory) {
  static_assert(std::is_base_of_v<Actor, A>, "an actor derives from pelton::Actor");
  auto cell = RefPtr<ActorCell>::Adopt(
      new ActorCell(executor, kActorType<A>, RefPtr<ActorCell>::Share(parent), std::move(options)));
  cell->Start(std::move(actor));
  if (factory) cell->SetFactory(std::move(factory));
  executor.OnSpawn(*cell);
  if (parent != nullptr) Adopt::Run(*parent, *cell);
  executor.Schedule(*cell);
  return ActorRef<A>(std::move(cell));
}

template <typename Adopt, typename A, typename... Args>
ActorRef<A> SpawnFrom(Executor& executor, ActorCell* parent, SpawnOptions options, Args&&... args) {
  ActorFactory factory;
  if constexpr ((std::is_copy_constructible_v<std::decay_t<Args>> && ...) &&
                std::is_constructible_v<A, const std::decay_t<Args>&...>) {
    if (parent != nullptr && (options.on_failure == OnFailure::kRestart ||
                              options.on_failure == OnFailure::kAlwaysRestart)) {
      factory = [arguments = std::tuple<std::decay_t<Args>...>(args...)]() {
        return std::apply(
            [](const auto&... each) -> std::unique_ptr<Actor> {
              return std::make_unique<A>(each...);
            },
            arguments);
      };
    }
  }
  auto actor = std::make_unique<A>(std::forward<Args>(args)...);
  return SpawnCell<Adopt>(executor, parent, std::move(options), std::move(actor),
                          std::move(factory));
}

}  // namespace internal

// Spawns a root actor: one without a parent, which Executor::Shutdown stops.
// Threads: any. Blocks: never.
template <typename A, typename... Args>
ActorRef<A> Spawn(Executor& executor, SpawnOptions options, Args&&... args) {
  return internal::SpawnFrom<internal::AdoptNow, A>(executor, nullptr, std::move(options),
                                                    std::forward<Args>(args)...);
}

// Spawns a child of the running actor, on options.executor or else the parent's own. With
// OnFailure::kRestart the arguments must be copyable: each incarnation is made from them anew.
// Threads: a turn of the parent. Blocks: never.
template <typename A, typename... Args>
ActorRef<A> SpawnChild(const Context& parent, SpawnOptions options, Args&&... args) {
  Executor& executor = options.executor != nullptr ? *options.executor : parent.executor();
  return internal::SpawnFrom<internal::AdoptNow, A>(executor, &parent.cell(), std::move(options),
                                                    std::forward<Args>(args)...);
}

// The same from outside of the parent's turns; a root actor of options.executor where `parent`
// refers to nobody. Where the parent has ended or is ending, a child that ends with it does so at
// once.
// Threads: any. Blocks: never.
template <typename A, typename... Args>
ActorRef<A> SpawnUnder(const ActorRef<Actor>& parent, SpawnOptions options, Args&&... args) {
  PELTON_CHECK(parent.valid() || options.executor != nullptr) << "a root actor needs an executor";
  Executor& executor = options.executor != nullptr ? *options.executor : parent.cell()->executor();
  return internal::SpawnFrom<internal::AdoptLater, A>(executor, parent.cell(), std::move(options),
                                                      std::forward<Args>(args)...);
}

}  // namespace pelton

#endif  // PELTON_CORE_ACTOR_SPAWN_H_
