// Ranks with a backend each, as threads of one process, whose bodies throw what goes wrong, as
// calls from Python do.
#ifndef PELTON_TORCH_BINDINGS_CSRC_TEST_BACKENDS_H_
#define PELTON_TORCH_BINDINGS_CSRC_TEST_BACKENDS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "backend/backend.h"
#include "backend/test_ranks.h"
#include "core/base/status.h"
#include "gtest/gtest.h"
#include "torch_bindings/csrc/test_errors.h"

namespace pelton::torch_bindings {

using RankBody = std::function<void(const std::shared_ptr<Backend>& backend)>;

// Runs `body` as each of `world_size` ranks, on threads, and fails the test where it throws.
// `timeout` is that of operations.
inline void OnRanks(int world_size, const RankBody& body,
                    absl::Duration timeout = absl::Seconds(10)) {
  const auto ended = RunRanks(world_size, [&](BackendOptions options) -> absl::Status {
    options.operation_timeout = timeout;
    ASSIGN_OR_RETURN(std::unique_ptr<Backend> started, Backend::Start(options));
    const std::shared_ptr<Backend> backend = std::move(started);
    const std::string error = ErrorOf([&] { body(backend); });
    // Nobody leaves while another one is at its last operation.
    Barrier(backend->control(), "end", Soon()).IgnoreError();
    return error == "none" ? absl::OkStatus() : absl::InternalError(error);
  });
  for (size_t rank = 0; rank < ended.size(); ++rank) {
    EXPECT_TRUE(ended[rank].ok()) << "rank " << rank << ": " << ended[rank];
  }
}

}  // namespace pelton::torch_bindings

#endif  // PELTON_TORCH_BINDINGS_CSRC_TEST_BACKENDS_H_
