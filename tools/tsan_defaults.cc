// What the thread sanitizer must not report: the distribution's libraries are not instrumented.
// That holds for what gRPC's headers inline as well: the CallOps and CallbackWithSuccessTag lie in
// a call that the library allocated, hands from thread to thread, and gives to the next call
// without a lock that the sanitizer sees; MetadataMap reads what was received there; the count of
// references that orders a shared absl::Status before its deletion is kept inside the library. The
// loader, which is not instrumented either, frees what a thread had of a library that was opened
// late (the stand-in for CUDA) when another thread takes over its stack. SocketAt
// (core/base/fork.cc) looks at descriptors that another thread may be closing: it compares what it
// finds with what it noted, so that either answer is right. The sanitizer does not see
// memfd_create, nor a close inside gRPC, and takes fstat of memory whose descriptor was a
// connection's before for a use of that connection; gcc 12's calls it by the interceptor's name.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_suppressions();

// Whoever asks for more memory than there is gets none, as without the sanitizer.
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

extern "C" const char* __tsan_default_suppressions() {
  return "race:libgrpc.so\nrace:libgrpc++.so\nrace:libgpr.so\nrace:libupb.so\n"
         "race:libabsl_\nrace:libprotobuf.so\ndeadlock:libabsl_\n"
         "called_from_lib:libgrpc.so\ncalled_from_lib:libgrpc++.so\n"
         "race:libssl.so\nrace:libcrypto.so\n"
         "called_from_lib:libssl.so\ncalled_from_lib:libcrypto.so\n"
         "race:grpc::internal::CallOp\nrace:grpc::internal::MetadataMap\n"
         "race:grpc::internal::CallbackWithSuccessTag::Set\n"
         "race:absl::*::Status::Unref\nrace:_dl_deallocate_tls\n"
         "race:SocketAt\nrace:^fstat$\nrace:^__interceptor_fstat$\n";
}
