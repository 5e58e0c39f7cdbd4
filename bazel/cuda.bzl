"""CUDA sources, compiled by nvcc where there is one; an empty library where there is none."""

load("@local_cuda//:defs.bzl", "CUDA_HOME")
load("//bazel:cc.bzl", "cc_library")

_OPTIONS = [
    "-c",
    "-O3",
    "-std=c++20",
    # Round as the host does: no fused multiply-add, no flushed denormals, exact division.
    "-fmad=false",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-gencode=arch=compute_90,code=compute_90",
]

def _cuda_objects_impl(ctx):
    infos = [dep[CcInfo] for dep in ctx.attr.deps]
    context = cc_common.merge_cc_infos(cc_infos = infos).compilation_context
    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file("_cuda/{}/{}.pic.o".format(ctx.label.name, source.basename))
        arguments = ctx.actions.args()
        arguments.add_all(_OPTIONS)
        arguments.add_all(context.defines, before_each = "-D")
        arguments.add_all(context.includes, before_each = "-I")
        arguments.add_all(context.quote_includes, before_each = "-I")
        arguments.add_all(context.system_includes, before_each = "-isystem")
        arguments.add(source)
        arguments.add("-o", object)
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = [arguments],
            inputs = depset(ctx.files.srcs + ctx.files.hdrs, transitive = [context.headers]),
            outputs = [object],
            # nvcc names its temporary files by its process number, which is the same in every sandbox.
            env = {"PATH": "/usr/bin:/bin", "TMPDIR": object.dirname},
            mnemonic = "Nvcc",
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu"]),
    },
)

def cuda_library(name, srcs, hdrs, deps, **kwargs):
    """A library of .cu files; PELTON_CUDA=1 is defined for its users where nvcc compiled it.

    Args:
      name: the library.
      srcs: .cu files.
      hdrs: headers without CUDA's own, which any compiler reads.
      deps: what the sources include.
      **kwargs: passed to cc_library.
    """
    if not CUDA_HOME:
        cc_library(name = name, hdrs = hdrs, deps = deps, **kwargs)
        return
    cuda_deps = deps + ["@local_cuda//:cudart"]
    _cuda_objects(name = name + "_objects", srcs = srcs, hdrs = hdrs, deps = cuda_deps)
    cc_library(
        name = name,
        srcs = [name + "_objects"],
        hdrs = hdrs,
        defines = ["PELTON_CUDA=1"],
        deps = cuda_deps,
        **kwargs
    )
