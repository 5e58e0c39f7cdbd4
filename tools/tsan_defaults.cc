// What the thread sanitizer must not report: the distribution's libraries are not instrumented.
extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\nrace:libgrpc++.so\nrace:libgpr.so\nrace:libabsl_\nrace:libprotobuf.so\n"
         "deadlock:libabsl_\ncalled_from_lib:libgrpc.so\ncalled_from_lib:libgrpc++.so\n";
}
