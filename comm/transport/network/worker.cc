#include "comm/transport/network/worker.h"

#include <algorithm>

namespace pelton::network {

// A note on its way.
struct Worker::Letter final : Waiter {
  Letter(const Header& header, const std::string& note, int* count)
      : header(header), note(note), count(count) {
    ++*count;
  }
  void OnDone(const absl::Status&) override {
    --*count;
    delete this;
  }

  const Header header;
  const std::string note;
  int* const count;  // of letters to that peer
};

void Worker::Post(int peer, const Header& header, const std::string& note) {
  if (!IsConnected(peer)) return;
  auto* const letter = new Letter(header, note, &letters_[peer]);
  const absl::StatusOr<bool> done =
      Send(peer, {&letter->header, letter->note.data(), letter->note.size(), false, letter});
  // On its way it is OnDone's. A failure is reported by Lose.
  if (!done.ok() || *done) letter->OnDone(absl::OkStatus());
}

bool Worker::IsPosted() const {
  return std::all_of(letters_.begin(), letters_.end(),
                     [](const auto& entry) { return entry.second == 0; });
}

bool Worker::IsPostedTo(int peer) const {
  const auto found = letters_.find(peer);
  return found == letters_.end() || found->second == 0;
}

}  // namespace pelton::network
