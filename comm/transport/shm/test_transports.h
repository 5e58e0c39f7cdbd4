// A world of shm transports whose ranks are threads of one test.
#ifndef PELTON_COMM_TRANSPORT_SHM_TEST_TRANSPORTS_H_
#define PELTON_COMM_TRANSPORT_SHM_TEST_TRANSPORTS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/communicator.h"
#include "comm/transport/shm/task_list.h"
#include "comm/transport/transport.h"
#include "core/base/sync.h"

namespace pelton::shm {

// The exchange of addresses between ranks that are threads of one test.

// Where the ranks meet. Threads: any. Owns: the values.
class MeetingPlace {
 public:
  explicit MeetingPlace(int world_size) : world_size_(world_size) {}

  absl::StatusOr<std::vector<std::string>> AllGather(int rank, const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) {
    MutexLock lock(&mutex_);
    std::map<int, std::string>& values = values_[key];
    values[rank] = value;
    changed_.SignalAll();
    while (values.size() < static_cast<size_t>(world_size_)) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        return absl::DeadlineExceededError("a rank did not come");
      }
    }
    std::vector<std::string> all;
    for (const auto& [peer, text] : values) all.push_back(text);
    return all;
  }

 private:
  const int world_size_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::map<int, std::string>> values_ ABSL_GUARDED_BY(mutex_);
};

// Threads: one. Owns: nothing.
class TestBootstrap : public Bootstrap {
 public:
  TestBootstrap(MeetingPlace& place, int rank) : place_(place), rank_(rank) {}
  absl::StatusOr<std::vector<std::string>> AllGather(const std::string& key,
                                                     const std::string& value,
                                                     absl::Time deadline) override {
    return place_.AllGather(rank_, key, value, deadline);
  }

 private:
  MeetingPlace& place_;
  const int rank_;
};

// By rank. Collectives of other kinds than `native_kinds` run as programs; `names` as
// TransportOptions'. Blocks: until all have met.
std::vector<std::unique_ptr<Transport>> MakeTestTransports(WorldSize world_size,
                                                           KindSet native_kinds = kKindsWithTasks,
                                                           const std::vector<Rank>& names = {});

// The communicators `id` of all ranks, by rank. Blocks: until all have opened it.
std::vector<std::unique_ptr<Communicator>> OpenWorld(
    const std::vector<std::unique_ptr<Transport>>& transports, CommunicatorId id);

}  // namespace pelton::shm

#endif  // PELTON_COMM_TRANSPORT_SHM_TEST_TRANSPORTS_H_
