"""Headers that a compiler reads once: parsing them again for each file took half the time of a build."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

# clang wants the language options of the files that include it, and looks for the headers where they were, by absolute
# paths: a sandbox's are gone by then, and another checkout's are not ours.
_CLANG_COPTS = ["-fmodules-decluse", "-fmodules-strict-decluse", "-Xclang", "-fno-pch-timestamp"]
_CLANG_REQUIREMENTS = {"no-sandbox": "1", "no-cache": "1"}

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    header = ctx.actions.declare_file("{}/{}".format(ctx.label.name, ctx.file.header.basename))
    ctx.actions.expand_template(template = ctx.file.header, output = header, substitutions = {})
    outputs = [header, _compile(ctx, toolchain, context, header)]
    return [
        DefaultInfo(files = depset([header])),
        # Not what is to be linked: who includes it has those libraries anyway, where it uses them.
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset(outputs, transitive = [context.headers]),
            includes = context.includes,
            quote_includes = context.quote_includes,
            system_includes = context.system_includes,
            defines = context.defines,
        )),
    ]

def _compile(ctx, toolchain, context, header):
    output = ctx.actions.declare_file(header.basename + ".gch", sibling = header)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features + ["layering_check"],  # of files
    )
    is_clang = toolchain.compiler == "clang"
    own_copts = ctx.attr.copts + (_CLANG_COPTS if is_clang else [])
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = output.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + own_copts + ["-x", "c++-header"],
        include_directories = context.includes,
        quote_include_directories = context.quote_includes,
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    compile = ACTION_NAMES.cpp_compile
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = compile),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = compile,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = compile,
            variables = variables,
        ),
        inputs = depset([header], transitive = [context.headers, toolchain.all_files]),
        outputs = [output],
        mnemonic = "PrecompileHeader",
        execution_requirements = _CLANG_REQUIREMENTS if is_clang else {},
    )
    return output

precompiled_header = rule(
    doc = "A header that a file compiled with the same options may be made to include first, by `-include`.",
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(doc = "Those of the files that include it, where they are not the default."),
        "deps": attr.label_list(providers = [CcInfo]),
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
