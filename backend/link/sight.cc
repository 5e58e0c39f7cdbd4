#include "backend/link/sight.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/actor/executor_base.h"

namespace pelton {
namespace {

// Errors quote what peers and users wrote, and a proto's text must be UTF-8.
std::string Printable(absl::string_view text) {
  std::string printable(text);
  std::replace_if(
      printable.begin(), printable.end(),
      [](unsigned char byte) { return !absl::ascii_isprint(byte); }, '?');
  return printable;
}

void Fill(const RoundSight& round, proto::ModelSight* out) {
  out->set_round(round.round.value());
  out->set_buckets(round.bucket_count);
  out->set_ready(round.ready_count);
  out->set_complete(round.complete_count);
  out->set_work(Printable(round.work));
  if (!round.work.empty())
    out->set_work_for_us(absl::ToInt64Microseconds(round.now - round.work_since));
  for (const Rank rank : round.missing) out->add_missing(rank.value());
  out->set_awaited(Printable(round.awaited));
  out->set_under_way(round.is_under_way());
  if (round.waited_since < absl::InfiniteFuture()) {
    out->set_waits(true);
    out->set_waits_for_us(absl::ToInt64Microseconds(round.now - round.waited_since));
  }
  if (round.moved_at > absl::InfinitePast()) {
    out->set_has_moved(true);
    out->set_moved_before_us(absl::ToInt64Microseconds(round.now - round.moved_at));
  }
}

void Fill(const LivingActor& actor, proto::ActorSight* out) {
  out->set_name(Printable(actor.name));
  out->set_what(Printable(actor.what));
  out->set_mailbox_used(actor.mailbox_used);
  out->set_mailbox_capacity(actor.mailbox_capacity);
  out->set_turns(actor.turns);
  out->set_is_in_turn(actor.is_in_turn);
  out->set_longest_turn_us(absl::ToInt64Microseconds(actor.longest_turn));
}

std::string SecondsOf(int64_t us) {
  return absl::FormatDuration(absl::Trunc(absl::Microseconds(us), absl::Milliseconds(1)));
}

}  // namespace

proto::LinkStatus SightOf(const Backend& backend, absl::Time deadline) {
  proto::LinkStatus status;
  const BackendOptions& options = backend.options();
  status.set_job(Printable(options.job));
  status.set_rank(options.rank.value());
  status.set_world_size(options.world_size.value());
  for (const int32_t host : backend.hosts().host_of) status.add_host_of(host);
  for (const Member& member : backend.membership().members) status.add_pid_of(member.host.pid);
  status.set_failure(Printable(backend.failure().message()));
  for (const std::string& text : backend.absences().texts()) status.add_absent(text);
  for (const ModelSight& model : backend.LookAtModels(deadline)) {
    proto::ModelSight* const out = status.add_models();
    out->set_name(Printable(model.name));
    out->set_sent_bytes(model.sent_bytes);
    if (!model.round.ok()) {
      out->set_unknown(Printable(model.round.status().message()));
      continue;
    }
    Fill(*model.round, out);
    status.set_round(std::max(status.round(), out->round()));
  }
  for (const LivingActor& actor : LivingActors()) Fill(actor, status.add_actors());
  return status;
}

std::string TextOf(const proto::ModelSight& model) {
  std::string text = absl::StrCat("model '", model.name(), "' sent ", model.sent_bytes(), " bytes");
  if (!model.unknown().empty())
    return absl::StrCat(text, " its round is unknown: ", model.unknown());
  absl::StrAppend(&text, " round ", model.round(), " buckets ", model.buckets(), " ready ",
                  model.ready(), " complete ", model.complete());
  if (model.waits()) {
    absl::StrAppend(&text, ", its trainer waits since ", SecondsOf(model.waits_for_us()));
  }
  if (!model.work().empty()) {
    absl::StrAppend(&text, ", under way since ", SecondsOf(model.work_for_us()), ": ",
                    model.work());
  }
  if (!model.missing().empty()) {
    absl::StrAppend(&text, ", waiting for rank ", absl::StrJoin(model.missing(), ", "));
  }
  if (!model.awaited().empty()) absl::StrAppend(&text, ", next: ", model.awaited());
  return text;
}

std::string TextOf(const proto::ActorSight& actor) {
  return absl::StrCat(actor.name().empty() ? "" : absl::StrCat(actor.name(), ", "), actor.what(),
                      ": mailbox ", actor.mailbox_used(), " of ", actor.mailbox_capacity(),
                      ", turns ", actor.turns(), actor.is_in_turn() ? ", in one now" : "",
                      ", the longest measured ", SecondsOf(actor.longest_turn_us()));
}

std::string TextOf(const proto::LinkStatus& status) {
  const auto pid = [](int64_t number) { return number == 0 ? "none" : absl::StrCat(number); };
  std::string text =
      absl::StrCat("job ", status.job(), " rank ", status.rank(), " of ", status.world_size(),
                   " daemon ", pid(status.daemon_pid()), " trainer ", pid(status.trainer_pid()),
                   " attachments ", status.attachments(), " round ", status.round(),
                   " communicators ", status.communicators(), " operations ", status.operations(),
                   status.failure().empty() ? "" : " failed: ", status.failure());
  for (const std::string& absent : status.absent()) absl::StrAppend(&text, "\n", absent);
  for (const proto::ModelSight& model : status.models()) {
    absl::StrAppend(&text, "\n", TextOf(model));
  }
  for (const proto::ActorSight& actor : status.actors()) {
    absl::StrAppend(&text, "\n", TextOf(actor));
  }
  return text;
}

std::string JsonOf(const proto::LinkStatus& status) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(status, &json, options).ok()) return "{}";
  return json;
}

}  // namespace pelton
