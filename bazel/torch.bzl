"""The C++ rules for what includes torch: without torch there are no such targets."""

load("@local_python//:defs.bzl", "TORCH")
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
