#include "comm/window/create_window.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "comm/window/edge_runs.h"
#include "core/actor/wait_hook.h"
#include "core/base/status.h"

namespace pelton {
namespace {

// What a rank tells the others of its end. Threads: a value. Owns: its lists.
struct Offer {
  std::string name;
  DType dtype = DType::kFloat32;
  uint64_t count = 0;
  std::vector<int64_t> shape;
  std::vector<Rank> sources;
  std::vector<Rank> destinations;
  uint64_t tensor_address = 0;
  MemoryAddress memory;

  WindowLayout Layout(int32_t world_size) const {
    return {world_size, sources.size(), count * SizeOf(dtype)};
  }
};

// An offer as bytes: numbers of 64 bits, lists with their length before them.
// Threads: one. Owns: the bytes.
class OfferWriter {
 public:
  explicit OfferWriter(const Offer& offer) {
    Number(offer.name.size());
    bytes_.append(offer.name);
    Number(static_cast<uint64_t>(offer.dtype));
    Number(offer.count);
    Number(offer.shape.size());
    for (const int64_t size : offer.shape) Number(static_cast<uint64_t>(size));
    for (const std::vector<Rank>* ranks : {&offer.sources, &offer.destinations}) {
      Number(ranks->size());
      for (const Rank rank : *ranks) Number(static_cast<uint64_t>(rank.value()));
    }
    Number(offer.tensor_address);
    Number(static_cast<uint64_t>(offer.memory.pid));
    Number(static_cast<uint64_t>(offer.memory.descriptor));
    Number(offer.memory.device);
    Number(offer.memory.inode);
  }
  std::string Take() { return std::move(bytes_); }

 private:
  void Number(uint64_t number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  std::string bytes_;
};

// Threads: one. Owns: nothing; the bytes outlive it.
class OfferReader {
 public:
  explicit OfferReader(absl::string_view bytes) : left_(bytes) {}

  // Errors: InvalidArgument: not what an OfferWriter writes.
  absl::StatusOr<Offer> Read() {
    Offer offer;
    const uint64_t length = Count(1);
    offer.name = std::string(left_.substr(0, length));
    left_.remove_prefix(offer.name.size());
    offer.dtype = static_cast<DType>(Number() % kDTypeCount);
    offer.count = Number();
    offer.shape.resize(Count(sizeof(uint64_t)));
    for (int64_t& size : offer.shape) size = static_cast<int64_t>(Number());
    for (std::vector<Rank>* ranks : {&offer.sources, &offer.destinations}) {
      ranks->resize(Count(sizeof(uint64_t)));
      for (Rank& rank : *ranks) rank = Rank(static_cast<int32_t>(Number()));
    }
    offer.tensor_address = Number();
    offer.memory.pid = static_cast<int64_t>(Number());
    offer.memory.descriptor = static_cast<int64_t>(Number());
    offer.memory.device = Number();
    offer.memory.inode = Number();
    if (is_short_ || !left_.empty()) return absl::InvalidArgumentError("an offer of another form");
    return offer;
  }

 private:
  uint64_t Number() {
    uint64_t number = 0;
    is_short_ = is_short_ || left_.size() < sizeof number;
    if (is_short_) return 0;
    std::memcpy(&number, left_.data(), sizeof number);
    left_.remove_prefix(sizeof number);
    return number;
  }
  // Of things of `size_bytes` that follow.
  uint64_t Count(size_t size_bytes) {
    const uint64_t count = Number();
    is_short_ = is_short_ || count > left_.size() / size_bytes;
    return is_short_ ? 0 : count;
  }

  absl::string_view left_;
  bool is_short_ = false;
};

std::string ShapeOf(const Offer& offer) {
  return absl::StrCat("[", absl::StrJoin(offer.shape, ", "), "] of ", NameOf(offer.dtype));
}

bool Has(const std::vector<Rank>& ranks, size_t rank) {
  return std::binary_search(ranks.begin(), ranks.end(), Rank(static_cast<int32_t>(rank)));
}

// The same text on every rank, because all look at the same offers in the same order.
absl::Status CompareOffers(const std::vector<Offer>& offers) {
  const Offer& first = offers[0];
  for (size_t rank = 1; rank < offers.size(); ++rank) {
    const Offer& other = offers[rank];
    if (other.name != first.name) {
      return absl::InvalidArgumentError(absl::StrCat("name: rank 0 makes window '", first.name,
                                                     "' and rank ", rank, " '", other.name, "'"));
    }
    if (other.dtype != first.dtype || other.shape != first.shape || other.count != first.count) {
      return absl::InvalidArgumentError(absl::StrCat("window '", first.name, "': the tensor is ",
                                                     ShapeOf(first), " on rank 0 and ",
                                                     ShapeOf(other), " on rank ", rank));
    }
  }
  for (size_t from = 0; from < offers.size(); ++from) {
    for (size_t to = 0; to < offers.size(); ++to) {
      const bool is_sent = Has(offers[from].destinations, to);
      if (is_sent == Has(offers[to].sources, from)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "window '", first.name, "': rank ", is_sent ? from : to, " has the edge ", from, " -> ",
          to, " and rank ", is_sent ? to : from,
          " has not; the ranks' topologies differ, call set_topology with one graph on all"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const std::vector<Rank>& ranks, Rank own, size_t world_size,
                        absl::string_view what) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int32_t rank = ranks[i].value();
    if (rank < 0 || static_cast<size_t>(rank) >= world_size || ranks[i] == own ||
        (i > 0 && ranks[i] <= ranks[i - 1])) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": rank ", rank, " is out of range, this rank, or not ascending"));
    }
  }
  return absl::OkStatus();
}

// Whether a rank's tensor is read in its window's memory: the same answer on all ranks.
bool SomeMove(const std::vector<std::string>& unread) {
  return std::any_of(unread.begin(), unread.end(), [](const std::string& letters) {
    return letters.find('h') != std::string::npos;
  });
}

}  // namespace

// Makes one rank's end, in the steps between which the ranks exchange what they say.
// Threads: one. Owns: the window until it is done.
class WindowMaker {
 public:
  WindowMaker(Rank rank, std::shared_ptr<const PeerProcesses> processes,
              std::shared_ptr<PeerLinks> links)
      : rank_(rank), processes_(std::move(processes)), links_(std::move(links)) {
    if (links_ != nullptr) number_ = links_->NextWindow();
  }
  WindowMaker(WindowMaker&&) = default;
  ~WindowMaker() {
    window_.reset();  // which uses the links
    if (links_ != nullptr && !connected_.empty()) links_->Disconnect(connected_);
  }

  absl::StatusOr<std::string> MakeOffer(WindowOptions options) {
    const auto world_size = static_cast<size_t>(processes_->world_size().value());
    RETURN_IF_ERROR(CheckWindowType(options.tensor.dtype));
    RETURN_IF_ERROR(CheckRanks(options.sources, rank_, world_size, "sources"));
    RETURN_IF_ERROR(CheckRanks(options.destinations, rank_, world_size, "destinations"));
    mine_.name = options.name;
    mine_.dtype = options.tensor.dtype;
    mine_.count = options.tensor.count;
    mine_.shape = options.shape;
    mine_.sources = options.sources;
    mine_.destinations = options.destinations;
    mine_.tensor_address = reinterpret_cast<uintptr_t>(options.tensor.data);
    ASSIGN_OR_RETURN(
        WindowMemory memory,
        WindowMemory::Create(mine_.Layout(processes_->world_size().value()), options.name));
    mine_.memory = memory.address();
    window_.reset(new Window(rank_, std::move(options), std::move(memory), processes_));
    RETURN_IF_ERROR(FillInlets());
    return OfferWriter(mine_).Take();
  }

  // Errors: those of CompareOffers, of WindowMemory::Attach and of PeerLinks::Connect. The ranks
  // whose tensor this rank may not read are in unread() then.
  absl::Status Attach(const std::vector<std::string>& texts, const MovingDeadline& deadline) {
    std::vector<Offer> offers;
    for (const std::string& text : texts) {
      ASSIGN_OR_RETURN(Offer offer, OfferReader(text).Read());
      offers.push_back(std::move(offer));
    }
    RETURN_IF_ERROR(CompareOffers(offers));
    for (size_t peer = 0; peer < offers.size(); ++peer) {
      if (!Has(mine_.sources, peer) && !Has(mine_.destinations, peer)) continue;
      if (processes_->is_far(Rank(static_cast<int32_t>(peer)))) continue;
      RETURN_IF_ERROR(Annotate(AttachTo(Rank(static_cast<int32_t>(peer)), offers[peer]),
                               absl::StrCat("window '", mine_.name, "', memory of rank ", peer)));
    }
    return Annotate(Connect(deadline), absl::StrCat("window '", mine_.name, "'"));
  }

  // One letter a rank: whether this rank has to read its tensor in its window's memory.
  std::string unread() const {
    std::string letters(static_cast<size_t>(processes_->world_size().value()), '-');
    for (const Rank source : mine_.sources) {
      if (!processes_->may_read(source)) letters[static_cast<size_t>(source.value())] = 'h';
    }
    return letters;
  }

  // `unread`: of all ranks. Far ranks are served after that. Errors: those of RemoteEnd::Serve; why
  // this rank's tensor cannot move.
  absl::Status Settle(const std::vector<std::string>& unread) {
    for (const std::string& letters : unread) {
      for (size_t rank = 0; rank < letters.size(); ++rank) {
        if (letters[rank] == 'h') RETURN_IF_ERROR(MoveHome(Rank(static_cast<int32_t>(rank))));
      }
    }
    window_->memory_.Close();
    for (const Rank peer : FarNeighbors()) RETURN_IF_ERROR(ServeFar(peer));
    return absl::OkStatus();
  }

  // Once all ranks have settled.
  std::unique_ptr<Window> Finish() {
    connected_.clear();
    return std::move(window_);
  }

 private:
  std::vector<Rank> FarNeighbors() const {
    std::vector<Rank> far;
    for (int32_t peer = 0; peer < processes_->world_size().value(); ++peer) {
      const auto index = static_cast<size_t>(peer);
      const bool is_neighbor = Has(mine_.sources, index) || Has(mine_.destinations, index);
      if (is_neighbor && processes_->is_far(Rank(peer))) far.emplace_back(peer);
    }
    return far;
  }

  absl::Status Connect(const MovingDeadline& deadline) {
    const std::vector<Rank> far = FarNeighbors();
    if (far.empty()) return absl::OkStatus();
    if (links_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("rank ", far[0].value(),
                       " is on another host, or in a container with processes of its "
                       "own, and there is no link to it"));
    }
    RETURN_IF_ERROR(links_->Connect(far, connected_, deadline.At(WaitClock().Now())));
    window_->links_ = links_;
    for (const Rank peer : far) {
      window_->remote_ends_.emplace(peer, std::make_unique<RemoteEnd>(links_->at(peer), number_));
    }
    return absl::OkStatus();
  }

  absl::Status ServeFar(Rank peer) {
    ServedWindow served;
    const Tensor& tensor = window_->options_.tensor;
    if (Has(mine_.sources, static_cast<size_t>(peer.value()))) {
      served.inlet = window_->memory_.edge(window_->InletOf(peer));
    }
    served.mutex = &window_->memory_.mutex(peer);
    served.tensor = static_cast<const std::byte*>(tensor.data);
    served.count = tensor.count;
    served.dtype = tensor.dtype;
    served.memory = window_->memory_.owner();
    return window_->remote_ends_.at(peer)->Serve(std::move(served));
  }

  // Buffer 0 of each inlet holds this rank's tensor at first.
  absl::Status FillInlets() {
    const WindowOptions& options = window_->options_;
    if (options.zero_init) return absl::OkStatus();
    EdgeWrite::What what;
    what.source = static_cast<const std::byte*>(options.tensor.data);
    what.count = options.tensor.count;
    what.dtype = options.tensor.dtype;
    for (size_t source = 0; source < options.sources.size(); ++source) {
      const EdgeView edge = window_->memory_.edge(source);
      EdgeWrite write(edge, what);
      absl::StatusOr<bool> is_done = false;
      while (is_done.ok() && !*is_done) is_done = write.Advance();
      RETURN_IF_ERROR(is_done.status());
      edge.inlet->ForgetVersion();
    }
    return absl::OkStatus();
  }

  absl::Status AttachTo(Rank peer, const Offer& offer) {
    ASSIGN_OR_RETURN(
        WindowMemory memory,
        WindowMemory::Attach(offer.Layout(processes_->world_size().value()), offer.memory));
    Window::NeighborEnd end{std::move(memory), -1, processes_->pid(peer), offer.tensor_address};
    const auto ours = std::lower_bound(offer.sources.begin(), offer.sources.end(), rank_);
    if (ours != offer.sources.end() && *ours == rank_) {
      end.inlet_of_ours = ours - offer.sources.begin();
    }
    window_->near_ends_.emplace(peer, std::move(end));
    return absl::OkStatus();
  }

  // All readers of `rank` read it there, those that might read elsewhere too.
  absl::Status MoveHome(Rank rank) {
    if (rank == rank_) {
      if (window_->home_ != nullptr) return absl::OkStatus();
      RETURN_IF_ERROR(window_->options_.immovable);
      window_->home_ = window_->memory_.home();
      Tensor& tensor = window_->options_.tensor;
      const uint64_t bytes = tensor.count * SizeOf(tensor.dtype);
      if (bytes > 0) std::memcpy(window_->home_, tensor.data, bytes);
      tensor.data = window_->home_;
      return absl::OkStatus();
    }
    const auto found = window_->near_ends_.find(rank);
    if (found == window_->near_ends_.end()) return absl::OkStatus();
    found->second.pid = getpid();
    found->second.tensor_address = reinterpret_cast<uintptr_t>(found->second.memory.home());
    return absl::OkStatus();
  }

  const Rank rank_;
  std::shared_ptr<const PeerProcesses> processes_;  // shared: all windows of a group use it
  std::shared_ptr<PeerLinks> links_;                // shared: the same
  uint64_t number_ = 0;
  std::vector<Rank> connected_;  // for this window, until it is made
  Offer mine_;
  std::unique_ptr<Window> window_;
};

absl::StatusOr<std::unique_ptr<Window>> CreateWindow(Communicator& communicator,
                                                     std::shared_ptr<const PeerProcesses> processes,
                                                     WindowOptions options,
                                                     const MovingDeadline& deadline,
                                                     std::shared_ptr<PeerLinks> links) {
  const bool has_far_ranks = processes->has_far_ranks();
  WindowMaker maker(communicator.rank(), std::move(processes), std::move(links));
  const absl::StatusOr<std::string> offer = maker.MakeOffer(std::move(options));
  RETURN_IF_ERROR(AgreeOnStatus(communicator, offer.status(), deadline));
  ASSIGN_OR_RETURN(const std::vector<std::string> offers,
                   ExchangeTexts(communicator, *offer, deadline));
  RETURN_IF_ERROR(AgreeOnStatus(communicator, maker.Attach(offers, deadline), deadline));
  ASSIGN_OR_RETURN(const std::vector<std::string> unread,
                   ExchangeTexts(communicator, maker.unread(), deadline));
  const absl::Status settled = maker.Settle(unread);
  // Nobody writes to a far rank that does not serve it yet, and nobody reads a tensor that is still
  // on its way home, or that cannot go there. Else nothing can fail here, on any rank.
  if (has_far_ranks || SomeMove(unread)) {
    RETURN_IF_ERROR(AgreeOnStatus(communicator, settled, deadline));
  }
  return maker.Finish();
}

absl::StatusOr<std::vector<std::unique_ptr<Window>>> CreateWindowsHere(
    std::vector<WindowOptions> options, const HostsHere* hosts) {
  const HostsHere one_host{std::vector<int32_t>(options.size(), 0),
                           std::vector<std::shared_ptr<PeerLinks>>(options.size())};
  if (hosts == nullptr) hosts = &one_host;
  std::vector<WindowMaker> makers;
  std::vector<std::string> offers;
  makers.reserve(options.size());
  for (size_t rank = 0; rank < options.size(); ++rank) {
    const Rank mine(static_cast<int32_t>(rank));
    std::function<absl::Status(Rank)> check;
    if (hosts->check != nullptr) check = std::bind_front(hosts->check, mine);
    makers.emplace_back(mine, PeerProcesses::AllHere(mine, hosts->host_of, std::move(check)),
                        hosts->links[rank]);
    ASSIGN_OR_RETURN(offers.emplace_back(), makers.back().MakeOffer(std::move(options[rank])));
  }
  for (WindowMaker& maker : makers) {
    RETURN_IF_ERROR(maker.Attach(offers, absl::InfiniteFuture()));
  }
  for (WindowMaker& maker : makers) RETURN_IF_ERROR(maker.Settle({}));
  std::vector<std::unique_ptr<Window>> windows;
  for (WindowMaker& maker : makers) windows.push_back(maker.Finish());
  return windows;
}

}  // namespace pelton
