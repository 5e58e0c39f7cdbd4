#include "comm/transport/ucx/ucx_worker.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "comm/transport/descriptor.h"
#include "comm/transport/ucx/ucx_library.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/base/sync.h"

namespace pelton::ucx {
namespace {

// Of a filter program, by the kernel.
constexpr size_t kMaxInstructions = BPF_MAXINSNS;
constexpr uint32_t kSourceAddressOffset = 12;  // in an IPv4 header
constexpr uint32_t kWholePacket = 0xffffffff;

bool Listens(int socket) {
  int value = 0;
  socklen_t size = sizeof value;
  return getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value != 0;
}

// In network order; 0 if it is no IP socket.
in_port_t PortOf(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET) return reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  if (address.ss_family == AF_INET6) return reinterpret_cast<sockaddr_in6*>(&address)->sin6_port;
  return 0;
}

// Takes the packets whose source is one of `addresses`, and drops all others.
std::vector<sock_filter> FilterOf(const std::set<uint32_t>& addresses) {
  const auto source = static_cast<uint32_t>(SKF_NET_OFF) + kSourceAddressOffset;
  std::vector<sock_filter> program = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, source)};
  for (const uint32_t address : addresses) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(address), 0, 1));
    program.push_back(BPF_STMT(BPF_RET | BPF_K, kWholePacket));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, 0));
  return program;
}

}  // namespace

std::set<int> ListeningSockets::Listening() {
  std::set<int> listening;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/proc/self/fd"), &closedir);
  if (folder == nullptr) return listening;
  while (const dirent* entry = readdir(folder.get())) {
    int descriptor = -1;
    if (!absl::SimpleAtoi(entry->d_name, &descriptor)) continue;
    if (Listens(descriptor) && PortOf(descriptor) != 0) listening.insert(descriptor);
  }
  return listening;
}

ListeningSockets ListeningSockets::Of(const std::set<int>& before,
                                      const std::string& worker_address) {
  ListeningSockets ours;
  for (const int socket : Listening()) {
    const in_port_t port = PortOf(socket);
    const std::string text(reinterpret_cast<const char*>(&port), sizeof port);
    const bool is_ours = worker_address.find(text) != std::string::npos;
    if (!before.contains(socket) && is_ours) ours.sockets_.push_back(socket);
  }
  ours.AcceptFrom({});  // nobody yet
  return ours;
}

void ListeningSockets::AcceptFrom(const std::set<uint32_t>& addresses) const {
  std::vector<sock_filter> filter = FilterOf(addresses);
  if (filter.size() > kMaxInstructions) return;
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  for (const int socket : sockets_) {
    setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
  }
}

absl::Status ListeningSockets::StopListening() {
  for (const int socket : sockets_) {
    const Descriptor idle(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!idle.is_open() || dup3(idle.get(), socket, O_CLOEXEC) < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("ucx: closing a port to strangers: ", std::strerror(errno)));
    }
  }
  sockets_.clear();
  return absl::OkStatus();
}

namespace {

constexpr unsigned kMessageId = 1;
// Rounds of progress in which closed endpoints give back what they hold; they need very few.
constexpr int kCloseRounds = 10000;
// Of making a worker.
constexpr absl::Duration kListedPatience = absl::Seconds(2);
constexpr int kLookMs = 1;

void OnSent(void* request, ucs_status_t status, void* waiter) {
  static_cast<network::Waiter*>(waiter)->OnDone(ToStatus(status, "sending"));
  Ucx().ucp_request_free(request);
}

void OnPulled(void* request, ucs_status_t status, size_t, void* waiter) {
  static_cast<network::Waiter*>(waiter)->OnDone(ToStatus(status, "receiving"));
  Ucx().ucp_request_free(request);
}

// Held while a worker begins or ends. UCX knows its event handlers by the numbers of their
// descriptors, for the whole process: one worker's end gives numbers free while its handlers may
// still be listed, and another's beginning would take them ("Element already exists").
Mutex& BeginsOrEnds() {
  static Mutex* const mutex = new Mutex;  // outlives every worker
  return *mutex;
}

// What another worker's progress closes meanwhile has such a number, too, which is listed until the
// thread that closed it goes on: under load that is not soon (seen in two runs of all tests).
absl::StatusOr<ucp_worker_h> MakeHandle(const Context& context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  const absl::Time patience = Clock::Real().Now() + kListedPatience;
  while (true) {
    ucp_worker_h handle = nullptr;
    const ucs_status_t status = Ucx().ucp_worker_create(context.handle(), &params, &handle);
    if (status == UCS_OK) return handle;
    if (status != UCS_ERR_ALREADY_EXISTS || Clock::Real().Now() >= patience) {
      return ToStatus(status, "making a worker");
    }
    poll(nullptr, 0, kLookMs);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const Context& context,
                                                             network::Receiver& receiver,
                                                             int peer_count) {
  std::unique_ptr<UcxWorker> worker;  // ends after the lock where its start fails
  // What begins to listen meanwhile is this worker's, too.
  MutexLock lock(&BeginsOrEnds());
  const std::set<int> listening_before = ListeningSockets::Listening();
  ASSIGN_OR_RETURN(const ucp_worker_h handle, MakeHandle(context));
  worker.reset(new UcxWorker(handle, receiver, peer_count));
  RETURN_IF_ERROR(worker->Start(listening_before));
  return worker;
}

UcxWorker::UcxWorker(ucp_worker_h handle, network::Receiver& receiver, int peer_count)
    : handle_(handle), receiver_(receiver), endpoints_(static_cast<size_t>(peer_count)) {
  for (int peer = 0; peer < peer_count; ++peer) {
    endpoints_[peer].worker = this;
    endpoints_[peer].peer = peer;
  }
}

UcxWorker::~UcxWorker() { Close(); }

absl::Status UcxWorker::Start(const std::set<int>& listening_before) {
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG | UCP_AM_FLAG_PERSISTENT_DATA;
  handler.cb = &UcxWorker::OnMessage;
  handler.arg = this;
  RETURN_IF_ERROR(
      ToStatus(Ucx().ucp_worker_set_am_recv_handler(handle_, &handler), "setting the receiver"));
  RETURN_IF_ERROR(
      ToStatus(Ucx().ucp_worker_get_efd(handle_, &descriptor_), "getting a descriptor"));
  ucp_address_t* address = nullptr;
  size_t size = 0;
  RETURN_IF_ERROR(
      ToStatus(Ucx().ucp_worker_get_address(handle_, &address, &size), "getting the address"));
  address_.assign(reinterpret_cast<const char*>(address), size);
  Ucx().ucp_worker_release_address(handle_, address);
  listening_sockets_ = ListeningSockets::Of(listening_before, address_);
  return absl::OkStatus();
}

absl::Status UcxWorker::Connect(int peer, const std::string& address) {
  Endpoint& endpoint = endpoints_[peer];
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxWorker::OnError;
  params.err_handler.arg = &endpoint;
  return ToStatus(Ucx().ucp_ep_create(handle_, &params, &endpoint.handle), "connecting");
}

absl::StatusOr<bool> UcxWorker::Send(int peer, const SendRequest& message) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &OnSent;
  param.user_data = message.waiter;
  param.flags = message.is_rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  const ucs_status_ptr_t request =
      Ucx().ucp_am_send_nbx(endpoints_[peer].handle, kMessageId, message.header,
                            sizeof(network::Header), message.data, message.size_bytes, &param);
  if (UCS_PTR_IS_ERR(request)) return ToStatus(UCS_PTR_STATUS(request), "sending");
  return request == nullptr;
}

absl::StatusOr<bool> UcxWorker::Pull(const network::Payload& payload, void* target,
                                     network::Waiter* waiter) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv_am = &OnPulled;
  param.user_data = waiter;
  const ucs_status_ptr_t request =
      Ucx().ucp_am_recv_data_nbx(handle_, payload.data, target, payload.size_bytes, &param);
  if (UCS_PTR_IS_ERR(request)) return ToStatus(UCS_PTR_STATUS(request), "receiving");
  return request == nullptr;
}

void UcxWorker::Release(const network::Payload& payload) {
  Ucx().ucp_am_data_release(handle_, payload.data);
}

bool UcxWorker::Progress() { return Ucx().ucp_worker_progress(handle_) != 0; }

bool UcxWorker::Arm() { return Ucx().ucp_worker_arm(handle_) == UCS_OK; }

bool UcxWorker::Flush() {
  if (flush_ == nullptr) {
    ucp_request_param_t param = {};
    void* const request = Ucx().ucp_worker_flush_nbx(handle_, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) return true;
    flush_ = request;
  }
  if (Ucx().ucp_request_check_status(flush_) == UCS_INPROGRESS) return false;
  Ucx().ucp_request_free(std::exchange(flush_, nullptr));
  return true;
}

void UcxWorker::Close() {
  if (handle_ == nullptr) return;
  std::vector<void*> closing;
  for (Endpoint& endpoint : endpoints_) {
    if (endpoint.handle == nullptr) continue;
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    void* const request = Ucx().ucp_ep_close_nbx(std::exchange(endpoint.handle, nullptr), &param);
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing.push_back(request);
  }
  for (void* const request : closing) {
    for (int i = 0; i < kCloseRounds && Ucx().ucp_request_check_status(request) == UCS_INPROGRESS;
         ++i) {
      Ucx().ucp_worker_progress(handle_);
    }
    Ucx().ucp_request_free(request);
  }
  if (flush_ != nullptr) Ucx().ucp_request_free(std::exchange(flush_, nullptr));
  MutexLock lock(&BeginsOrEnds());
  Ucx().ucp_worker_destroy(std::exchange(handle_, nullptr));
}

ucs_status_t UcxWorker::OnMessage(void* self, const void* header, size_t header_bytes, void* data,
                                  size_t size_bytes, const ucp_am_recv_param_t* param) {
  if (header_bytes != sizeof(network::Header)) return UCS_OK;  // dropped: nobody of ours sends that
  network::Header copy;
  std::memcpy(&copy, header, sizeof copy);
  const network::Payload payload{data, size_bytes,
                                 (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
  const bool can_keep =
      payload.is_rendezvous || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA) != 0;
  const bool kept = static_cast<UcxWorker*>(self)->receiver_.Receive(copy, payload);
  return kept && can_keep ? UCS_INPROGRESS : UCS_OK;
}

void UcxWorker::OnError(void* endpoint, ucp_ep_h, ucs_status_t status) {
  const Endpoint& broken = *static_cast<Endpoint*>(endpoint);
  broken.worker->receiver_.Lose(broken.peer, ToStatus(status, "the connection broke"));
}

}  // namespace pelton::ucx
