"""Fuzz targets: each is run as a test over its corpus, and by libFuzzer for as long as one likes."""

load("//bazel:cc.bzl", "cc_test")

def fuzz_target(name, deps):
    """Two tests of the function LLVMFuzzerTestOneInput in name.cc, over the files in corpus/name.

    name_test, for every compiler, runs each file of the corpus and a fixed number of mutations of it. name_fuzz is
    libFuzzer's program; --config=fuzz builds it, and nothing else does.

    Args:
      name: the target.
      deps: what it includes beside input.h.
    """
    srcs = [name + ".cc"]
    corpus = native.glob(["corpus/{}/*".format(name)])
    arguments = [native.package_name() + "/corpus/" + name]
    cc_test(
        name = name + "_test",
        size = "medium",
        srcs = srcs,
        args = arguments,
        data = corpus,
        one_thread = True,
        deps = [":corpus_main", ":input"] + deps,
        has_main = True,
    )
    cc_test(
        name = name + "_fuzz",
        size = "enormous",
        srcs = srcs,
        # The input that breaks it goes to /tmp, which outlives the sandbox; the log has its name.
        args = [
            "-max_total_time=60",
            "-timeout=25",
            "-print_final_stats=1",
            "-artifact_prefix=/tmp/",
        ] + arguments,
        data = corpus,
        linkopts = ["-fsanitize=fuzzer"],
        tags = ["manual"],
        deps = [":input"] + deps,
        has_main = True,
    )
