// What the process recorded, as a file that trace viewers open.
#ifndef PELTON_BACKEND_TRACE_FILE_H_
#define PELTON_BACKEND_TRACE_FILE_H_

#include <string>

#include "core/base/ids.h"
#include "core/trace/trace.h"

namespace pelton {

// Has `tracer` record for as long as it lives, and then writes the ring in Chrome's trace format
// (chrome://tracing, Perfetto). A file that cannot be written is left out: it must not fail a job.
// Threads: made and destroyed by one. Owns: nothing.
class TraceFile {
 public:
  // Writes "<prefix>.rank<rank>.json".
  TraceFile(const std::string& prefix, Rank rank, Tracer& tracer = Tracer::Get());
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

 private:
  const std::string path_;
  const Rank rank_;
  Tracer& tracer_;
};

}  // namespace pelton

#endif  // PELTON_BACKEND_TRACE_FILE_H_
