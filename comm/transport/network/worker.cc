#include "comm/transport/network/worker.h"

namespace pelton::network {

// A note on its way.
struct Worker::Letter final : Waiter {
  Letter(const Header& header, const std::string& note, int* count)
      : header(header), note(note), count(count) {}
  void OnDone(const absl::Status&) override {
    --*count;
    delete this;
  }

  const Header header;
  const std::string note;
  int* const count;  // of letters on their way
};

void Worker::Post(int peer, const Header& header, const std::string& note) {
  if (!IsConnected(peer)) return;
  auto* const letter = new Letter(header, note, &letters_);
  ++letters_;
  const absl::StatusOr<bool> done =
      Send(peer, {&letter->header, letter->note.data(), letter->note.size(), false, letter});
  // On its way it is OnDone's. A failure is reported by Lose.
  if (!done.ok() || *done) letter->OnDone(absl::OkStatus());
}

}  // namespace pelton::network
