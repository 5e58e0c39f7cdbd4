// Asking again where a deadline has moved while somebody waited for it.
#ifndef PELTON_CORE_BASE_ASK_UNTIL_H_
#define PELTON_CORE_BASE_ASK_UNTIL_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/moving_deadline.h"

namespace pelton {

namespace internal {
inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}
}  // namespace internal

// What `call` answers, which takes the deadline as it is when it is called: for whoever is asked
// elsewhere, and says itself that the time is over. It is called once more where the deadline has
// come later meanwhile. Blocks: as `call`.
template <typename Call>
auto AskUntil(const MovingDeadline& deadline, const Clock& clock, Call&& call) {
  // Whoever is asked may have a clock that is ahead of ours. An answer that is earlier than that
  // tells of another deadline, which has ended what is asked, and would come at once each time.
  constexpr absl::Duration kSlack = absl::Milliseconds(100);
  while (true) {
    const absl::Time until = deadline.At(clock.Now());
    auto answer = call(until);
    const absl::Time now = clock.Now();
    const bool is_its_own =
        absl::IsDeadlineExceeded(internal::StatusOf(answer)) && now + kSlack >= until;
    if (!is_its_own || now >= deadline.At(now)) return answer;
  }
}

}  // namespace pelton

#endif  // PELTON_CORE_BASE_ASK_UNTIL_H_
