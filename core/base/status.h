// Short forms for passing absl::Status up the stack.
#ifndef PELTON_CORE_BASE_STATUS_H_
#define PELTON_CORE_BASE_STATUS_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace pelton {

// `status` with `context` and ": " put before its message; OK stays OK. The code and payloads are
// kept.
absl::Status Annotate(const absl::Status& status, absl::string_view context);
// The same with what `context` returns, which is called for an error only: on paths where a text
// made for nothing would cost more than the rest.
absl::Status Annotate(const absl::Status& status, absl::FunctionRef<std::string()> context);

// The beginning of `text`, in UTF-8, of at most `most_bytes`: no letter is cut in two, because
// Python takes no text with half a letter for its exceptions.
absl::string_view CutToFit(absl::string_view text, size_t most_bytes);

}  // namespace pelton

#define PELTON_STATUS_CONCAT_INNER_(a, b) a##b
#define PELTON_STATUS_CONCAT_(a, b) PELTON_STATUS_CONCAT_INNER_(a, b)

// Returns from the enclosing function if `expression` is not OK.
#define RETURN_IF_ERROR(expression)                                         \
  do {                                                                      \
    if (absl::Status pelton_status_ = (expression); !pelton_status_.ok()) { \
      return pelton_status_;                                                \
    }                                                                       \
  } while (false)

// Assigns the value of `expression` (a StatusOr) to `lhs`, or returns its status.
#define ASSIGN_OR_RETURN(lhs, expression) \
  ASSIGN_OR_RETURN_IMPL_(PELTON_STATUS_CONCAT_(pelton_statusor_, __LINE__), lhs, expression)
#define ASSIGN_OR_RETURN_IMPL_(temporary, lhs, expression)   \
  auto temporary = (expression);                             \
  if (!temporary.ok()) return std::move(temporary).status(); \
  lhs = *std::move(temporary)

#endif  // PELTON_CORE_BASE_STATUS_H_
