"""Headers that g++ parses once, for hundreds of files.

Half of the time of a compilation would be the same headers again: Abseil's Status and strings, glog, googletest,
LibTorch's Tensor. They are headers of other projects only: when a header of Reprise changed, every file would be
compiled again. A file has to include what it uses all the same: embedders' workspaces and installations compile without,
and so does --define=reprise_precompiled=no.
"""

load("@reprise_rules//:cc.bzl", CcInfo = "cc_info", cc_common = "cc_tools")

_PrecompiledInfo = provider(
    doc = "A precompiled header.",
    fields = {
        "context": "The compilation context of what it includes.",
        "header": "The header; its compiled form lies beside it.",
        "inputs": "What a compilation with it reads.",
    },
)

# This label exists in every version of Bazel.
_TOOLCHAIN = "@bazel_tools//tools/cpp:current_cc_toolchain"

def _precompiled_header_impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context

    # For `-include x.h` g++ reads x.h.gch of the same folder.
    header = ctx.actions.declare_file("_precompiled/" + ctx.file.header.basename)
    ctx.actions.symlink(output = header, target_file = ctx.file.header)
    compiled = ctx.actions.declare_file(header.basename + ".gch", sibling = header)
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-xc++-header"],
        include_directories = context.includes,
        quote_include_directories = depset(["."], transitive = [context.quote_includes]),
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    action = "c++-compile"
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = action),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset([header] + ctx.files.srcs, transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.file.header.short_path,
        # As for C++ files (.bazelrc): links to thousands of headers cost more than the compilation.
        execution_requirements = {"no-sandbox": "1"},
    )
    return [
        DefaultInfo(files = depset([compiled])),
        _PrecompiledInfo(header = header, context = context, inputs = depset([header, compiled] + ctx.files.srcs)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "srcs": attr.label_list(allow_files = [".h"], doc = "What the header includes of this workspace."),
        "_cc_toolchain": attr.label(default = _TOOLCHAIN),
    },
    fragments = ["cpp"],
)

def _precompiled_flags_impl(ctx):
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    folders = depset(transitive = [context.includes, context.system_includes]).to_list()
    for choice in ctx.attr._for_tests if ctx.attr.testonly else ctx.attr._for_libraries:
        info = choice[_PrecompiledInfo]
        needed = depset(transitive = [info.context.includes, info.context.system_includes]).to_list()
        if not [folder for folder in needed if folder not in folders]:
            ctx.actions.write(ctx.outputs.out, "-Winvalid-pch -include %s\n" % info.header.path)
            inputs = depset([ctx.outputs.out], transitive = [info.inputs])
            return [CcInfo(compilation_context = cc_common.create_compilation_context(headers = inputs))]
    fail("no precompiled header has only what the deps have")

precompiled_flags = rule(
    doc = """Writes compiler options for one target: the first of the precompiled headers whose include paths the target has.

A library that does not depend on LibTorch does not see LibTorch this way either.""",
    implementation = _precompiled_flags_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "out": attr.output(mandatory = True),
        # The header with the most dependencies comes first.
        "_for_libraries": attr.label_list(
            default = ["//tools/precompiled:torch", "//tools/precompiled:vocabulary"],
            providers = [_PrecompiledInfo],
        ),
        "_for_tests": attr.label_list(
            default = ["//tools/precompiled:torch_tests", "//tools/precompiled:tests"],
            providers = [_PrecompiledInfo],
        ),
    },
)
