// Whether an address or thread sanitizer watches this build: everything takes several times as
// long there, and fewer cases and smaller tensors find the same.
#ifndef PELTON_CORE_BASE_SANITIZER_H_
#define PELTON_CORE_BASE_SANITIZER_H_

#include "absl/base/config.h"

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
#define PELTON_SANITIZED 1
#else
#define PELTON_SANITIZED 0
#endif

namespace pelton {

inline constexpr bool kSanitized = PELTON_SANITIZED;

}  // namespace pelton

#endif  // PELTON_CORE_BASE_SANITIZER_H_
