// How many descriptors this process has open, for tests.
#ifndef PELTON_COMM_TRANSPORT_OPEN_DESCRIPTORS_H_
#define PELTON_COMM_TRANSPORT_OPEN_DESCRIPTORS_H_

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace pelton {

// The one by which they are counted among them. Threads: any.
inline size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace pelton

#endif  // PELTON_COMM_TRANSPORT_OPEN_DESCRIPTORS_H_
