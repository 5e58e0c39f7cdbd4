#include "backend/link/model_shelf.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pelton {

void ModelShelf::Serves(uint64_t attachment) { serving_.insert(attachment); }

void ModelShelf::HasMade(const std::string& name) { names_.insert(name); }

void ModelShelf::HasServed(uint64_t attachment, const std::string& name,
                           std::unique_ptr<ModelServer> server) {
  if (const auto found = names_.find(name); found != names_.end()) names_.erase(found);
  if (const auto found = serving_.find(attachment); found != serving_.end()) serving_.erase(found);
  if (server != nullptr) {
    left_.push_back(std::move(server));
  } else if (!name.empty()) {
    let_go_.insert(attachment);
  }
}

absl::StatusOr<std::unique_ptr<ModelServer>> ModelShelf::Take(uint64_t attachment,
                                                              const std::string& name) {
  const auto has_name = [&name](const auto& server) { return server->name() == name; };
  const auto found = std::find_if(left_.begin(), left_.end(), has_name);
  if (found != left_.end()) {
    std::unique_ptr<ModelServer> server = std::move(*found);
    left_.erase(found);
    return server;
  }
  // A script that restores a snapshot lets its model go and makes it once more.
  if (serving_.count(attachment) < serving_.size() || names_.contains(name)) {
    return absl::UnavailableError(
        absl::StrCat("model '", name, "': models of a former trainer are still under way"));
  }
  if (left_.empty()) return nullptr;
  return absl::NotFoundError(absl::StrCat(
      "model '", name, "': the trainer comes in the place of one whose model is '",
      left_.front()->name(), "'; start the same script, or the trainers of all ranks"));
}

bool ModelShelf::HasOutrunSnapshot() const {
  return std::any_of(left_.begin(), left_.end(),
                     [](const auto& server) { return server->snapshot_is_behind(); });
}

void ModelShelf::PutBack(std::unique_ptr<ModelServer> server) {
  left_.push_back(std::move(server));
}

}  // namespace pelton
