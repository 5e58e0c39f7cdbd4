"""Repository rules that wrap what the system and the chosen Python already have installed."""

def _run(ctx, command):
    result = ctx.execute(command)
    if result.return_code != 0:
        fail("%s failed: %s" % (" ".join([str(part) for part in command]), result.stderr))
    return result.stdout.strip()

def _which(ctx, tool):
    path = ctx.which(tool)
    if not path:
        fail("%s is not on PATH; tools/setup installs it" % tool)
    return path

def _flags(ctx, what, modules):
    return [flag for flag in _run(ctx, [_which(ctx, "pkg-config"), what] + modules.split(" ")).split(" ") if flag]

def _pkg_config_impl(ctx):
    builds = {}
    for label, modules in ctx.attr.targets.items():
        package, _, name = label[2:].partition(":")
        libs = _flags(ctx, "--libs", modules)
        linkopts = ["-Wl,--as-needed"] + libs if libs else []
        rule = "cc_library(\n    name = %r,\n    linkopts = %r,\n)\n" % (name, linkopts)
        builds.setdefault(package, []).append(rule)
    for tool in ctx.attr.tools:
        ctx.symlink(_which(ctx, tool), tool + ".bin")
        rule = "exports_files([%r])\nalias(name = %r, actual = %r)\n" % (tool + ".bin", tool, tool + ".bin")
        builds.setdefault("", []).append(rule)
    for package, rules in builds.items():
        path = (package + "/" if package else "") + "BUILD.bazel"
        ctx.file(path, 'package(default_visibility = ["//visibility:public"])\n' + "".join(rules))

# The linker looks into -L folders first: one that holds archives only makes a program carry them.
def _static_archives_impl(ctx):
    pc = _which(ctx, "pkg-config")
    folders = [_run(ctx, [pc, "--variable=libdir", module]) for module in ctx.attr.modules]
    for folder in folders:
        for entry in ctx.path(folder).readdir():
            for prefix in ctx.attr.prefixes:
                if entry.basename.startswith(prefix) and entry.basename.endswith(".a"):
                    ctx.symlink(entry, "archives/" + entry.basename)
    cxx = _run(ctx, [_which(ctx, "gcc"), "-print-file-name=libstdc++.a"])
    if cxx.startswith("/"):
        ctx.symlink(cxx, "runtime/libstdc++.a")
    ctx.file("BUILD.bazel", """cc_library(
    name = "prefer_archives",
    linkopts = ["-L{archives}"],
    visibility = ["//visibility:public"],
)

# Not for a program that also loads a shared library of C++: it would have two of these runtimes.
cc_library(
    name = "prefer_own_runtime",
    linkopts = ["-L{runtime}"],
    visibility = ["//visibility:public"],
)
""".format(archives = ctx.path("archives"), runtime = ctx.path("runtime")))

static_archives_repository = repository_rule(
    implementation = _static_archives_impl,
    attrs = {"modules": attr.string_list(), "prefixes": attr.string_list()},
    local = True,
)

pkg_config_repository = repository_rule(
    implementation = _pkg_config_impl,
    attrs = {"targets": attr.string_dict(), "tools": attr.string_list()},
    local = True,
)

# The interpreter runs isolated: pip's build isolation would otherwise hide the environment's torch.
_PROBE = """
import os, sys, sysconfig
print(sys.executable)
print(sysconfig.get_paths()["include"])
print(sysconfig.get_config_var("EXT_SUFFIX"))
library = os.path.join(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDLIBRARY"))
print(library if library.endswith(".so") and os.path.exists(library) else "")
try:
    import torch
    assert torch._C._GLIBCXX_USE_CXX11_ABI, "torch was built with the old C++ ABI"
    print(torch.__path__[0])
except ImportError:
    print("")
"""

_PYTHON_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

py_runtime(
    name = "runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
    stub_shebang = "#!/usr/bin/env python3",
)

py_runtime_pair(name = "pair", py3_runtime = ":runtime")

toolchain(
    name = "toolchain",
    toolchain = ":pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)

cc_library(
    name = "headers",
    hdrs = glob(["python_include/**/*.h"], allow_empty = True),
    includes = ["python_include"],
)
"""

_TORCH_BUILD = """
cc_library(
    name = "torch",
    hdrs = glob(["torch_include/**/*"]),
    includes = ["torch_include", "torch_include/torch/csrc/api/include"],
    linkopts = ["-L{torch}/lib", "-Wl,--as-needed", "-ltorch", "-ltorch_cpu", "-lc10"],
)

cc_library(
    name = "torch_rpath",
    linkopts = ["-Wl,-rpath,{torch}/lib"],
    deps = [":torch"],
)

cc_library(
    name = "torch_python",
    linkopts = ["-ltorch_python"],
    deps = [":headers", ":torch"],
)
"""

# An extension module finds Python's functions in its process, a program that runs Python in this library.
_LIBPYTHON_BUILD = """
cc_library(
    name = "embedded_python",
    linkopts = ["{library}", "-Wl,-rpath,{folder}", "-Wl,-rpath,{torch}/lib"],
    deps = [":torch_python"],
)
"""

def _python_torch_impl(ctx):
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or _which(ctx, "python3")
    found = (_run(ctx, [python, "-I", "-c", _PROBE]) + "\n\n").split("\n")
    executable, include, suffix, library, torch = found[:5]
    ctx.symlink(include, "python_include")
    build = _PYTHON_BUILD.format(python = executable)
    if torch:
        for entry in ctx.path(torch + "/include").readdir():
            if entry.basename != "google":  # incomplete headers of another protobuf: they break ours
                ctx.symlink(entry, "torch_include/" + entry.basename)
        build += _TORCH_BUILD.format(torch = torch)
    if torch and library:
        build += _LIBPYTHON_BUILD.format(torch = torch, library = library, folder = library.rpartition("/")[0])
    ctx.file("BUILD.bazel", build)
    ctx.file("defs.bzl", "HAS_LIBPYTHON = %r\nTORCH = %r\nEXT_SUFFIX = %r\nPYTHON = %r\n" % (bool(library), torch, suffix, executable))

python_torch_repository = repository_rule(
    implementation = _python_torch_impl,
    environ = ["PYTHON_BIN_PATH", "PATH"],
    local = True,
)

_CUDA_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
)

cc_library(
    name = "cudart",
    linkopts = ["-L{home}/lib64", "-l:libcudart_static.a", "-ldl", "-lrt", "-lpthread"],
    deps = [":headers"],
)
"""

def _cuda_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    if not ctx.path(home + "/bin/nvcc").exists:
        ctx.file("BUILD.bazel", "")
        ctx.file("defs.bzl", "CUDA_HOME = ''\n")
        return
    ctx.symlink(home + "/include", "include")
    ctx.file("BUILD.bazel", _CUDA_BUILD.format(home = home))
    ctx.file("defs.bzl", "CUDA_HOME = %r\n" % home)

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
