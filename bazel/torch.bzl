"""The C++ rules for what includes torch: without torch there are no such targets."""

load("@local_python//:defs.bzl", "HAS_LIBPYTHON", "TORCH")
load("//bazel:cc.bzl", "cc_library", "cc_test")

def torch_library(name, **kwargs):
    """A cc_library of //bazel:cc.bzl.

    Args:
      name: the library.
      **kwargs: those of cc_library.
    """
    if TORCH:
        cc_library(name, **kwargs)

def torch_test(name, **kwargs):
    """A cc_test of //bazel:cc.bzl.

    Args:
      name: the test.
      **kwargs: those of cc_test.
    """
    if TORCH:
        cc_test(name, **kwargs)

def python_test(name, deps = [], **kwargs):
    """A test that runs Python itself, where there is a library of Python's that a program can be linked with.

    Args:
      name: the test.
      deps: what it includes.
      **kwargs: those of cc_test.
    """
    if TORCH and HAS_LIBPYTHON:
        cc_test(name, deps = deps + ["@local_python//:embedded_python"], **kwargs)
