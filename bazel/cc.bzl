"""The C++ rules of this project: the native ones with precompiled headers."""

load("@rules_cc//cc:defs.bzl", _cc_binary = "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")

cc_binary = _cc_binary

_LIBRARY = Label("//bazel:library_headers")
_TEST = Label("//bazel:test_headers")

# --define=precompiled=no shows which file does not include what it uses.
_IS_PLAIN = str(Label("//bazel:is_plain"))

# Tests are compiled more often than they run long.
TEST_COPTS = ["-O0"]

# gcc takes over the options that a precompiled header was compiled with (-ffp-contract is lost, for one), so what has
# options of its own goes without.
def _with(precompiled, deps, copts, own_copts):
    if own_copts:
        return {"copts": copts + own_copts, "deps": deps}
    first = ["-Winvalid-pch", "-include", "$(location {})".format(precompiled)]
    return {
        "copts": select({_IS_PLAIN: [], "//conditions:default": first}) + copts,
        "deps": deps + select({_IS_PLAIN: [], "//conditions:default": [precompiled]}),
    }

def cc_library(name, deps = [], copts = [], **kwargs):
    """A library.

    Args:
      name: the library.
      deps: what it includes.
      copts: further compiler options.
      **kwargs: those of the native rule.
    """
    kwargs.update(_with(_LIBRARY, deps, [], copts) if kwargs.get("srcs") else {"copts": copts, "deps": deps})
    _cc_library(name = name, **kwargs)

def cc_test(name, deps = [], copts = [], **kwargs):
    """A test.

    Args:
      name: the test.
      deps: what it includes.
      copts: further compiler options.
      **kwargs: those of the native rule.
    """
    kwargs.update(_with(_TEST, deps, TEST_COPTS, copts))
    _cc_test(name = name, **kwargs)

def cc_test_suite(name, deps = [], **kwargs):
    """Tests that several cc_test run.

    Args:
      name: the library of them.
      deps: what they include.
      **kwargs: those of the native cc_library.
    """
    kwargs.update(_with(_TEST, deps, TEST_COPTS, []))
    _cc_library(name = name, **kwargs)
