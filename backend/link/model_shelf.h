// Models of a trainer that has died, until another one comes in its place.
#ifndef PELTON_BACKEND_LINK_MODEL_SHELF_H_
#define PELTON_BACKEND_LINK_MODEL_SHELF_H_

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backend/link/model_server.h"

namespace pelton {

// A daemon's. What is being served is known as well, because the trainer's death may be seen on one
// of its connections before it is on another.
// Threads: one at a time. Owns: the models that nobody serves.
class ModelShelf {
 public:
  // A model of this attachment is being made, or served, from now on.
  void Serves(uint64_t attachment);
  // It is no longer; `server`: its trainer has died, and another one may have it. Null: it is gone.
  // `name`: as in HasMade; empty: it was never made.
  void HasServed(uint64_t attachment, const std::string& name, std::unique_ptr<ModelServer> server);
  // Whether there is any, served or not.
  bool HasAny() const { return !left_.empty() || !serving_.empty(); }
  // Whether a model of this attachment has gone in good order, and there is none.
  bool HasLetAllGo(uint64_t attachment) const { return !HasAny() && let_go_.contains(attachment); }
  // Whether a model of this attachment is being made, or served.
  bool IsServing(uint64_t attachment) const { return serving_.contains(attachment); }
  void HasMade(const std::string& name);
  // Whether the last snapshot of the trainer that has died is too old for one of those left here.
  bool HasOutrunSnapshot() const;

  // The model of this name, for the trainer `attachment`; null: there is none, and nothing else
  // either, so that it is a new one. Errors: Unavailable: models of others are yet to come here, or
  // one of that name, so that it is to be asked again; NotFound: there are others, named.
  absl::StatusOr<std::unique_ptr<ModelServer>> Take(uint64_t attachment, const std::string& name);
  void PutBack(std::unique_ptr<ModelServer> server);
  // All that are there.
  std::list<std::unique_ptr<ModelServer>> TakeAll() { return std::exchange(left_, {}); }

 private:
  std::multiset<uint64_t> serving_;   // those that are being made included
  std::multiset<std::string> names_;  // of those that are made, and served
  std::set<uint64_t> let_go_;         // attachments of which a model has gone in good order
  std::list<std::unique_ptr<ModelServer>> left_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_LINK_MODEL_SHELF_H_
