// What a call throws, for tests.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TEST_ERRORS_H_
#define PELTON_TORCH_BINDINGS_CSRC_TEST_ERRORS_H_

#include <functional>
#include <string>

#include "torch_bindings/csrc/status_error.h"

namespace pelton::torch_bindings {

// What `body` throws as a status, as text; "none": it returns.
inline std::string ErrorOf(const std::function<void()>& body) {
  try {
    body();
  } catch (const StatusError& error) {
    return error.status().ToString();
  }
  return "none";
}

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_TEST_ERRORS_H_
