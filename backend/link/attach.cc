#include "backend/link/attach.h"

#include <memory>
#include <utility>

#include "backend/link/link_client.h"
#include "backend/link/link_communicator.h"
#include "comm/control/wire.h"
#include "core/base/clock.h"
#include "core/base/limits.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// Threads: as Control. Owns: its share of the link.
class LinkControl final : public Control {
 public:
  explicit LinkControl(std::shared_ptr<LinkClient> client) : client_(std::move(client)) {}
  ~LinkControl() override { client_->OnNotice(nullptr); }

  absl::StatusOr<Membership> Join(const JoinRequest&, absl::Time) override {
    return absl::FailedPreconditionError("the daemon of this rank has joined the job already");
  }
  absl::StatusOr<ControlAnswer> Ask(ControlQuestion question, absl::Time deadline) override;
  void SetRound(Round round) override;
  absl::Status Report(const absl::Status& reason, absl::Time deadline) override;
  absl::Status Leave(absl::Time deadline) override {
    client_->Leave(deadline);
    return absl::OkStatus();
  }
  void OnOrder(OrderCallback callback) override;
  LinkClient* link() const { return client_.get(); }

 private:
  const std::shared_ptr<LinkClient> client_;  // shared: the transport uses the same link
};

absl::StatusOr<ControlAnswer> LinkControl::Ask(ControlQuestion question, absl::Time deadline) {
  proto::LinkCall call;
  wire::ToProto(std::move(question), call.mutable_question());
  ASSIGN_OR_RETURN(proto::LinkReply reply, client_->Call(std::move(call), deadline));
  return wire::FromProto(std::move(*reply.mutable_answer()));
}

void LinkControl::SetRound(Round round) { client_->SendRound(round); }

absl::Status LinkControl::Report(const absl::Status& reason, absl::Time deadline) {
  proto::LinkCall call;
  call.mutable_report()->set_code(static_cast<int32_t>(reason.code()));
  call.mutable_report()->set_message(std::string(reason.message()));
  return client_->Call(std::move(call), deadline).status();
}

void LinkControl::OnOrder(OrderCallback callback) {
  if (callback == nullptr) return client_->OnNotice(nullptr);
  client_->OnNotice([callback = std::move(callback)](const proto::Order& order) {
    callback(wire::FromProto(order));
  });
}

}  // namespace

std::unique_ptr<Control> MakeLinkControl(std::shared_ptr<LinkClient> client) {
  return std::make_unique<LinkControl>(std::move(client));
}

LinkClient* LinkOf(Control& control) {
  const auto* const linked = dynamic_cast<LinkControl*>(&control);
  return linked == nullptr ? nullptr : linked->link();
}

bool IsLinkAddress(absl::string_view address) {
  return address.substr(0, kLinkAddressPrefix.size()) == kLinkAddressPrefix;
}

std::string PathOfLink(absl::string_view address) {
  return std::string(address.substr(kLinkAddressPrefix.size()));
}

absl::StatusOr<LinkedParts> AttachToDaemon(const DaemonPlace& place, absl::Time deadline) {
  ASSIGN_OR_RETURN(
      std::shared_ptr<LinkClient> client,
      LinkClient::Attach({place.path, place.job, place.rank, place.world_size}, deadline));
  LinkedParts parts;
  const proto::LinkWelcome& welcome = client->welcome();
  parts.hosts.host_of.assign(welcome.host_of().begin(), welcome.host_of().end());
  parts.host_warning = welcome.host_warning();
  parts.is_heir = welcome.is_heir();
  parts.mark = [client](TrainerMark mark, absl::Time until) {
    proto::LinkCall call;
    call.set_mark(static_cast<proto::LinkMark>(mark));
    return client->Call(std::move(call), until).status();
  };
  parts.control = MakeLinkControl(client);
  parts.transport = MakeLinkTransport(std::move(client));
  return parts;
}

}  // namespace pelton
