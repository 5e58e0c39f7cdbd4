"""The C++ rules of this project: the native ones with precompiled headers."""

load("@rules_cc//cc:defs.bzl", _cc_binary = "cc_binary", _cc_library = "cc_library", _cc_test = "cc_test")

cc_binary = _cc_binary

_LIBRARY = Label("//bazel:library_headers")
_TEST = Label("//bazel:test_headers")

# --define=precompiled=no shows which file does not include what it uses.
_IS_PLAIN = str(Label("//bazel:is_plain"))

# Tests are compiled more often than they run long.
TEST_COPTS = ["-O0"]

# Of cc_paused_test, and of what it compiles anew.
PAUSED_COPTS = ["-DPELTON_PAUSES_AT_ATOMICS"]

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

_GTEST = "@com_google_googletest//:gtest_main"
_ABSL = "@com_google_absl//"

def _labels(deps):
    """Abseil's libraries by their path in it: "absl/status"."""
    return [_ABSL + dep if dep.startswith("absl/") else dep for dep in deps]

def _with_gtest(deps):
    """Behind the last dependency that is ours or Abseil's."""
    last = 0
    for i, dep in enumerate(deps):
        if not dep.startswith("@") or dep.startswith(_ABSL):
            last = i + 1
    return deps[:last] + [_GTEST] + deps[last:]

def _files(name, kwargs, **extensions):
    """Fills in the files that are named as the target."""
    for attribute, extension in extensions.items():
        if attribute not in kwargs:
            kwargs[attribute] = native.glob([name + extension], allow_empty = True)

def cc_library(name, deps = [], copts = [], private = False, **kwargs):
    """A library of name.h and name.cc, or of the one that there is.

    Args:
      name: the library.
      deps: what it includes; Abseil's by their path in it.
      copts: further compiler options.
      private: whether it is for this package alone.
      **kwargs: those of the native rule.
    """
    _files(name, kwargs, srcs = ".cc", hdrs = ".h")
    if private:
        kwargs["visibility"] = ["//visibility:private"]
    deps = _labels(deps)
    kwargs.update(_with(_LIBRARY, deps, [], copts) if kwargs.get("srcs") else {"copts": copts, "deps": deps})
    _cc_library(name = name, **kwargs)

def cc_test(name, deps = [], copts = [], one_thread = False, has_main = False, **kwargs):
    """A test, name.cc, under GoogleTest.

    Args:
      name: the test.
      deps: what it includes; Abseil's by their path in it, GoogleTest's main added.
      copts: further compiler options.
      one_thread: whether it has one thread, so that the thread sanitizer would see nothing.
      has_main: whether it has a main function of its own, in its sources or its dependencies.
      **kwargs: those of the native rule.
    """
    _files(name, kwargs, srcs = ".cc")
    if one_thread:
        kwargs["tags"] = ["notsan"]
    deps = _labels(deps)
    is_complete = has_main or any(["googletest" in dep for dep in deps])
    kwargs.update(_with(_TEST, deps if is_complete else _with_gtest(deps), TEST_COPTS, copts))
    _cc_test(name = name, **kwargs)

def cc_paused_test(name, sources = [], deps = []):
    """A test in which the threads of a simulation (core/actor/sim_threads.h) may switch before each atomic access.

    The runtime's atomics are of another type there (core/actor/sync_policy.h), so that the actors and what includes them
    are compiled anew. What the product links is not touched.

    Args:
      name: the test, name.cc.
      sources: what is compiled with it, beside core/actor: all that includes core/actor.
      deps: what all of it includes of the rest, nothing of which includes core/actor.
    """
    cc_test(
        name,
        srcs = [name + ".cc"] + sources,
        copts = PAUSED_COPTS,
        one_thread = True,
        deps = ["//core/actor:paused"] + deps,
    )

def cc_test_suite(name, deps = [], **kwargs):
    """Tests that several cc_test run.

    Args:
      name: the library of them.
      deps: what they include.
      **kwargs: those of the native cc_library.
    """
    kwargs.update(_with(_TEST, deps, TEST_COPTS, []))
    _cc_library(name = name, **kwargs)
