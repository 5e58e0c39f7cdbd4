#include "benchmarks/actor/measurement.h"

#include <unistd.h>

#include <fstream>

namespace pelton::benchmarks {

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total_pages = 0;
  size_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace pelton::benchmarks
