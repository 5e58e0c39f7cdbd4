"""A system library that may be missing: benchmarks compare with it where it is installed."""

def _optional_library_impl(ctx):
    found = ctx.path("/usr/include/" + ctx.attr.header).exists
    ctx.file("BUILD.bazel", """
cc_library(
    name = {name!r},
    defines = {defines!r},
    linkopts = {linkopts!r},
    visibility = ["//visibility:public"],
)
""".replace("{name!r}", repr(ctx.attr.library)).replace(
        "{defines!r}",
        repr([ctx.attr.define] if found else []),
    ).replace(
        "{linkopts!r}",
        repr(["-Wl,--as-needed", "-l" + ctx.attr.library] if found else []),
    ))

optional_library_repository = repository_rule(
    implementation = _optional_library_impl,
    attrs = {
        "header": attr.string(doc = "decides, under /usr/include, whether it is installed"),
        "library": attr.string(doc = "name of the target and of the library to link"),
        "define": attr.string(doc = "macro that is defined where it is installed"),
    },
    local = True,
)
