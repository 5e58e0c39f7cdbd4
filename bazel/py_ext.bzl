"""A Python extension module that shows nothing but its PyInit function."""

load("//bazel:cc.bzl", "cc_binary")

def py_extension(name, deps, copts = [], **kwargs):
    """Builds `<name>.so`; `<name>` names it, too.

    Args:
      name: the module's name; its PyInit_<name> is the only exported symbol.
      deps: the C++ libraries that it is made of, linked whole.
      copts: further compiler options.
      **kwargs: passed to cc_binary.
    """
    cc_binary(
        name = name + ".so",
        linkshared = True,
        linkstatic = True,
        copts = ["-fvisibility=hidden"] + copts,
        linkopts = [
            "-Wl,--version-script=$(location //bazel:py_ext.lds)",
            "-Wl,--allow-shlib-undefined",
            "-Wl,--gc-sections",
            "-Wl,-rpath,$$ORIGIN",  # what it looks up when needed lies beside it
        ],
        deps = deps + ["//bazel:py_ext.lds"],
        **kwargs
    )
    native.filegroup(name = name, srcs = [name + ".so"])
