#include "comm/transport/network/wire.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace pelton::network {

std::string Sign(absl::string_view job_token, absl::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), job_token.data(), static_cast<int>(job_token.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  PELTON_CHECK(made != nullptr) << "HMAC-SHA256 is not to be had";
  return std::string(reinterpret_cast<const char*>(digest), size);
}

MessageKey DeriveKey(absl::string_view job_token, const Path& path) {
  const std::string digest =
      Sign(job_token,
           absl::StrCat("pelton network path ", path.communicator.value(), " ",
                        path.generation.value(), " ", path.from.value(), " ", path.to.value()));
  MessageKey key;
  std::memcpy(key.data(), digest.data(), key.size());
  return key;
}

bool SameKey(const MessageKey& a, const MessageKey& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string EncodeReason(const absl::Status& reason, Header* header) {
  header->type = MessageType::kAbort;
  header->operation.count = static_cast<uint64_t>(reason.code());
  return std::string(CutToFit(reason.message(), kMaxNoteBytes / 2));
}

absl::Status DecodeReason(const Header& header, absl::string_view text, Rank source) {
  constexpr auto kLastCode = static_cast<uint64_t>(absl::StatusCode::kUnauthenticated);
  const uint64_t code = header.operation.count;
  const auto known = code >= 1 && code <= kLastCode ? static_cast<absl::StatusCode>(code)
                                                    : absl::StatusCode::kUnknown;
  if ((header.flags & kIsDeath) != 0) return absl::Status(known, text);
  return absl::Status(known, absl::StrCat("rank ", source.value(), " aborted: ", text));
}

Members::Members(const std::string& job_token, CommunicatorId id, Group group, Rank rank,
                 const std::vector<Rank>& near)
    : id_(id), group_(std::move(group)), rank_(rank) {
  for (int32_t i = 0; i < group_.size().value(); ++i) {
    const Rank peer(i);
    outgoing_.push_back(DeriveKey(job_token, {id_, group_.generation, rank_, peer}));
    incoming_.push_back(DeriveKey(job_token, {id_, group_.generation, peer, rank_}));
    const bool is_near = std::find(near.begin(), near.end(), WorldRankOf(i)) != near.end();
    is_peer_.push_back(peer != rank_ && !is_near);
  }
}

Header Members::MakeHeader(MessageType type, int peer) const {
  Header header;
  header.key = outgoing_[static_cast<size_t>(peer)];
  header.type = type;
  header.source = static_cast<uint32_t>(rank_.value());
  header.operation.communicator = id_;
  header.operation.generation = group_.generation;
  return header;
}

bool Members::IsGenuine(const Header& header) const {
  return header.source < incoming_.size() && SameKey(header.key, incoming_[header.source]) &&
         is_peer_[header.source];
}

}  // namespace pelton::network
