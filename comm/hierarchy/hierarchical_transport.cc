#include "comm/hierarchy/hierarchical_transport.h"

#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/collectives/program_communicator.h"
#include "comm/hierarchy/hierarchical_communicator.h"
#include "comm/hierarchy/layout.h"
#include "core/base/clock.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton {
namespace hierarchy {
namespace {

// Sets the communicators of the collectives' messages apart from those of the users'.
constexpr uint32_t kCollectivesBit = uint32_t{1} << 31;

// Threads: as Transport. Owns: its options' transports.
class HierarchicalTransport final : public HostsTransport {
 public:
  explicit HierarchicalTransport(HierarchyOptions options) : options_(std::move(options)) {}

  // Errors: also InvalidArgument: an id of more than 31 bits.
  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    const WorldSize world_size(static_cast<int32_t>(options_.host_of.size()));
    RETURN_IF_ERROR(CheckGroup(group, world_size, options_.rank));
    if (id.value() & kCollectivesBit) {
      return absl::InvalidArgumentError(absl::StrCat("id: ", id.value(), " has more than 31 bits"));
    }
    const SelectionTable table = TakeTable(id);
    Layout layout(group, options_.host_of);
    if (layout.host_count() == 1) return OpenInside(id, group, deadline);
    if (layout.host_count() == layout.world_size()) {
      ASSIGN_OR_RETURN(std::unique_ptr<Communicator> wire,
                       options_.between->Open(id, group, deadline));
      return MakeProgramCommunicator(std::move(wire), table);
    }
    ASSIGN_OR_RETURN(Ends ends, OpenEnds(id, group, deadline));
    auto communicator = std::make_unique<HierarchicalCommunicator>(
        id, group.generation, std::move(layout), std::move(ends), table,
        [this](HierarchicalCommunicator* closing) { open_.Remove(closing); }, Clock::Real(),
        options_.staged_kinds);
    open_.Add(communicator.get());
    return communicator;
  }

  void UseTable(CommunicatorId id, SelectionTable table) override {
    tables_.insert_or_assign(id.value(), std::move(table));
  }

  void Abort(const absl::Status& reason) override {
    // At once on all wires between hosts, where telling may take a while; each communicator then
    // finds its own told.
    if (options_.between != nullptr) options_.between->Abort(reason);
    open_.ForEach([&](HierarchicalCommunicator* communicator) { communicator->Abort(reason); });
    if (options_.inside != nullptr) options_.inside->Abort(reason);
  }

  void SayGoodbye() override {
    if (options_.inside != nullptr) options_.inside->SayGoodbye();
    if (options_.between != nullptr) options_.between->SayGoodbye();
  }

 private:
  absl::StatusOr<std::unique_ptr<Communicator>> OpenInside(CommunicatorId id, const Group& group,
                                                           absl::Time deadline) {
    const Group inside = GroupInside(group, options_.rank, options_.host_of);
    return options_.inside->Open(id, inside, deadline);
  }

  absl::StatusOr<Ends> OpenEnds(CommunicatorId id, const Group& group, absl::Time deadline) {
    const CommunicatorId collectives(id.value() | kCollectivesBit);
    Ends ends;
    if (GroupInside(group, options_.rank, options_.host_of).size() > WorldSize(1)) {
      ASSIGN_OR_RETURN(ends.users_inside, OpenInside(id, group, deadline));
      ASSIGN_OR_RETURN(ends.collectives_inside, OpenInside(collectives, group, deadline));
    }
    ASSIGN_OR_RETURN(ends.users_between, options_.between->Open(id, group, deadline));
    ASSIGN_OR_RETURN(ends.collectives_between,
                     options_.between->Open(collectives, group, deadline));
    return ends;
  }

  SelectionTable TakeTable(CommunicatorId id) {
    const auto own = tables_.find(id.value());
    if (own == tables_.end()) return options_.table;
    SelectionTable table = std::move(own->second);
    tables_.erase(own);
    return table;
  }

  const HierarchyOptions options_;
  std::map<uint32_t, SelectionTable> tables_;  // of communicators that are to be opened
  SharedList<HierarchicalCommunicator*> open_;
};

}  // namespace
}  // namespace hierarchy

std::unique_ptr<HostsTransport> MakeHierarchicalTransport(HierarchyOptions options) {
  return std::make_unique<hierarchy::HierarchicalTransport>(std::move(options));
}

}  // namespace pelton
