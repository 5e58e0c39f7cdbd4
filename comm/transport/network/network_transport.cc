#include "comm/transport/network/network_transport.h"

#include <sched.h>

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "comm/group.h"
#include "comm/transport/network/conversation.h"
#include "comm/transport/network/intercom.h"
#include "comm/transport/network/network_communicator.h"
#include "core/base/clock.h"
#include "core/base/process_limits.h"
#include "core/base/sharing.h"
#include "core/base/status.h"

namespace pelton::network {
namespace {

// A peer that has not closed by then keeps what the kernel has of ours, and no more.
constexpr absl::Duration kLinger = absl::Milliseconds(500);

// Threads: as Transport. Owns: the network, the intercom worker, and the conversations of
// communicators that this rank has closed and a peer has not.
class NetworkTransport final : public Transport {
 public:
  NetworkTransport(const TransportOptions& options, std::unique_ptr<Network> network,
                   std::unique_ptr<Intercom> intercom)
      : rank_(options.rank),
        world_size_(options.world_size),
        job_token_(options.job_token),
        near_(options.near),
        network_(std::move(network)),
        intercom_(std::move(intercom)) {}

  ~NetworkTransport() override {
    SayGoodbye();
    const absl::Time until = Clock::Real().Now() + kLinger;
    while (!SettleClosed() && Clock::Real().Now() < until) sched_yield();
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Open(CommunicatorId id, const Group& group,
                                                     absl::Time deadline) override {
    RETURN_IF_ERROR(CheckGroup(group, world_size_, rank_));
    SettleClosed();
    auto opened = OpenChecked(id, group, deadline);
    return opened.ok()
               ? std::move(opened)
               : Annotate(opened.status(), absl::StrCat("network: rank ", rank_.value(),
                                                        ": opening communicator ", id.value()));
  }

  void Abort(const absl::Status& reason) override {
    open_.ForEach([&](NetworkCommunicator* communicator) { communicator->Announce(reason); });
    open_.ForEach([&](NetworkCommunicator* communicator) { communicator->Abort(reason); });
  }

  // Blocks: for kLinger where a peer does not take the news.
  void SayGoodbye() override {
    const absl::Time until = Clock::Real().Now() + kLinger;
    while (!HaveAllBeenTold() && Clock::Real().Now() < until) sched_yield();
  }

 private:
  bool HaveAllBeenTold() {
    bool are_told = intercom_->SayGoodbye();
    open_.ForEach([&](NetworkCommunicator* communicator) {
      are_told = communicator->SayGoodbye() && are_told;
    });
    return are_told;
  }

  absl::StatusOr<std::unique_ptr<Communicator>> OpenChecked(CommunicatorId id, const Group& group,
                                                            absl::Time deadline) {
    ASSIGN_OR_RETURN(std::unique_ptr<Conversation> conversation,
                     Conversation::Create(
                         *network_, Members(job_token_, id, group, *group.RankOf(rank_), near_)));
    ASSIGN_OR_RETURN(const std::string address, conversation->AcceptFrom(intercom_->hosts()));
    ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                     intercom_->Exchange(conversation->members(), address, deadline));
    RETURN_IF_ERROR(conversation->Greet(addresses, deadline));
    auto on_close = [this](NetworkCommunicator* closed, std::unique_ptr<Conversation> rest) {
      Forget(closed, std::move(rest));
    };
    ASSIGN_OR_RETURN(std::unique_ptr<NetworkCommunicator> communicator,
                     NetworkCommunicator::Create(std::move(conversation), *intercom_, on_close));
    open_.Add(communicator.get());
    return communicator;
  }

  void Forget(NetworkCommunicator* communicator, std::unique_ptr<Conversation> rest) {
    open_.Remove(communicator);
    if (rest != nullptr) closed_.Add(std::move(rest));
    SettleClosed();
  }

  // Whether nobody needs it any more: its sockets can go.
  static bool IsOver(Conversation& conversation) {
    MutexLock lock(&conversation.mutex());
    conversation.SayBye();
    return conversation.IsOver() || conversation.worker().DeliversWhenClosed();
  }

  // Drops the closed conversations that are over; true when there is none left.
  bool SettleClosed() {
    return closed_.RemoveIf([](const auto& conversation) { return IsOver(*conversation); });
  }

  const Rank rank_;
  const WorldSize world_size_;
  const std::string job_token_;
  const std::vector<Rank> near_;
  const std::unique_ptr<Network> network_;
  const std::unique_ptr<Intercom> intercom_;
  SharedList<NetworkCommunicator*> open_;
  SharedList<std::unique_ptr<Conversation>> closed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeNetworkTransport(const TransportOptions& options,
                                                                std::unique_ptr<Network> network) {
  RaiseDescriptorLimit();
  ASSIGN_OR_RETURN(std::unique_ptr<Intercom> intercom, Intercom::Make(*network, options));
  return std::make_unique<NetworkTransport>(options, std::move(network), std::move(intercom));
}

}  // namespace pelton::network
