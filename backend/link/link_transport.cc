#include "backend/link/link_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "backend/link/link_communicator.h"
#include "core/base/shared_list.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Transport. Owns: its share of the link, and the list of what is open.
class LinkTransport final : public Transport {
 public:
  explicit LinkTransport(std::shared_ptr<LinkClient> client) : client_(std::move(client)) {}

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override;
  void Abort(const absl::Status& reason) override {
    open_.ForEach([&](LinkCommunicator* communicator) { communicator->Abort(reason); });
  }

 private:
  const std::shared_ptr<LinkClient> client_;  // shared: the control uses the same link
  SharedList<LinkCommunicator*> open_;
};

absl::StatusOr<std::unique_ptr<Communicator>> LinkTransport::Open(CommunicatorId id,
                                                                  const Group& group,
                                                                  absl::Time deadline) {
  const Rank world_rank(client_->rank());
  const std::optional<Rank> rank = group.RankOf(world_rank);
  if (!rank.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("group: rank ", world_rank.value(), " is not in it"));
  }
  proto::LinkHello hello;
  hello.set_purpose(proto::LinkHello::COMMUNICATOR);
  for (const Rank member : group.members) hello.add_members(member.value());
  hello.set_generation(group.generation.value());
  proto::LinkWelcome welcome;
  ASSIGN_OR_RETURN(std::unique_ptr<LinkSocket> socket, client_->Connect(hello, &welcome, deadline));
  LinkCommunicator::Options options;
  options.rank = *rank;
  options.world_size = group.size();
  options.id = id;
  options.number = welcome.communicator();
  options.piece_bytes = welcome.piece_bytes();
  options.client = client_;
  options.on_close = [this](LinkCommunicator* closing) { open_.Remove(closing); };
  auto opened = std::make_unique<LinkCommunicator>(std::move(options), std::move(socket));
  open_.Add(opened.get());
  return opened;
}

}  // namespace

std::unique_ptr<Transport> MakeLinkTransport(std::shared_ptr<LinkClient> client) {
  return std::make_unique<LinkTransport>(std::move(client));
}

}  // namespace pelton
