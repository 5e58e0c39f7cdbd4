#include "algorithms/codec/codec.h"

#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace pelton {

absl::Status Codec::Configure(const CodecOptions& options) {
  OptionTable table;
  BindOptions(table);
  return table.Parse(options);
}

absl::StatusOr<std::unique_ptr<Codec>> MakeCodec(const std::string& name,
                                                 const CodecOptions& options) {
  ASSIGN_OR_RETURN(const CodecRegistry::Entry entry, CodecRegistry::Get().Find(name));
  std::unique_ptr<Codec> codec = entry.factory();
  RETURN_IF_ERROR(Annotate(codec->Configure(options), absl::StrCat("codec ", name)));
  return codec;
}

}  // namespace pelton
