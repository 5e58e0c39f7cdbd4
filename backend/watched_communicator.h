// A communicator that its backend knows of for as long as it lives.
#ifndef PELTON_BACKEND_WATCHED_COMMUNICATOR_H_
#define PELTON_BACKEND_WATCHED_COMMUNICATOR_H_

#include <functional>
#include <memory>
#include <utility>

#include "comm/forwarding_communicator.h"

namespace pelton {

// Threads: as Communicator. Owns: the communicator it wraps.
class WatchedCommunicator final : public ForwardingCommunicator {
 public:
  using OnClose = std::function<void(Communicator*)>;

  // `on_close` is called with this object before the wrapped one ends.
  WatchedCommunicator(std::unique_ptr<Communicator> wrapped, OnClose on_close)
      : ForwardingCommunicator(std::move(wrapped)), on_close_(std::move(on_close)) {}
  ~WatchedCommunicator() override { on_close_(this); }

 private:
  const OnClose on_close_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_WATCHED_COMMUNICATOR_H_
