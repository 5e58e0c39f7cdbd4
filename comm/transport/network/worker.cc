#include "comm/transport/network/worker.h"

#include <algorithm>

namespace pelton::network {

// A note on its way.
struct Worker::PostedNote final : Waiter {
  PostedNote(const Header& header, const std::string& note, int* count)
      : header(header), note(note), count(count) {
    ++*count;
  }
  void OnDone(const absl::Status&) override {
    --*count;
    delete this;
  }

  const Header header;
  const std::string note;
  int* const count;  // of notes to that peer
};

void Worker::Post(int peer, const Header& header, const std::string& note) {
  if (!IsConnected(peer)) return;
  auto* const posted = new PostedNote(header, note, &posted_notes_[peer]);
  const absl::StatusOr<bool> done =
      Send(peer, {&posted->header, posted->note.data(), posted->note.size(), false, posted});
  // On its way it is OnDone's. A failure is reported by Lose.
  if (!done.ok() || *done) posted->OnDone(absl::OkStatus());
}

bool Worker::IsPosted() const {
  return std::all_of(posted_notes_.begin(), posted_notes_.end(),
                     [](const auto& entry) { return entry.second == 0; });
}

bool Worker::IsPostedTo(int peer) const {
  const auto found = posted_notes_.find(peer);
  return found == posted_notes_.end() || found->second == 0;
}

}  // namespace pelton::network
