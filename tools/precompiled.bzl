"""Headers that the compiler parses once, for hundreds of files.

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

_ACTION = "c++-compile"

# This label exists in every version of Bazel.
_TOOLCHAIN = "@bazel_tools//tools/cpp:current_cc_toolchain"

# Options for precompiling a header. Templates that the headers use are instantiated once, not in every file.
# Without the times of the headers, the form does not depend on when a checkout was made.
_CLANG_FLAGS = ["-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp"]

def _compiler(ctx):
    """Returns the toolchain's features, and the path of its compiler."""
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(ctx = ctx, cc_toolchain = toolchain)
    return features, cc_common.get_tool_for_action(feature_configuration = features, action_name = _ACTION)

def _is_clang(compiler):
    return "clang" in compiler.split("/")[-1]

# The code of tests runs once and is compiled often. g++ needs some optimisation to see what its warnings are about.
_CLANG_OPTIONS_OF_TESTS = ["-O0"]

_OPTIONS_OF_ALL = ["-Winvalid-pch"]

# Part of the names of the files of options: no list of a compiler's inputs names them, so Bazel would not compile
# again when only their contents change.
OPTIONS_ID = str(hash(repr([_CLANG_OPTIONS_OF_TESTS, _OPTIONS_OF_ALL])) & 0xffffffff)

def _options(compiler, for_tests):
    """Returns the options of a header's users, which have to be the header's too."""
    return _CLANG_OPTIONS_OF_TESTS if for_tests and _is_clang(compiler) else []

def _precompiled_header_impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features, compiler = _compiler(ctx)
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context

    # For `-include x.h` both compilers read x.h.gch of the same folder.
    header = ctx.actions.declare_file("_precompiled/" + ctx.file.header.basename)
    ctx.actions.symlink(output = header, target_file = ctx.file.header)
    compiled = ctx.actions.declare_file(header.basename + ".gch", sibling = header)
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-xc++-header"] +
                             _options(compiler, ctx.attr.for_tests) + (_CLANG_FLAGS if _is_clang(compiler) else []),
        include_directories = context.includes,
        quote_include_directories = depset(["."], transitive = [context.quote_includes]),
        system_include_directories = context.system_includes,
        preprocessor_defines = context.defines,
        use_pic = True,
    )
    ctx.actions.run(
        executable = compiler,
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = _ACTION,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = _ACTION,
            variables = variables,
        ),
        inputs = depset([header] + ctx.files.srcs, transitive = [context.headers, toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.file.header.short_path,
        # As for C++ files (.bazelrc): links to thousands of headers cost more than the compilation. clang's form has
        # the absolute paths of the headers: one checkout must not take that of another from the disk cache.
        execution_requirements = {"no-cache": "1", "no-sandbox": "1"},
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
        "for_tests": attr.bool(doc = "Whether its users are testonly."),
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "srcs": attr.label_list(allow_files = [".h"], doc = "What the header includes of this workspace."),
        "_cc_toolchain": attr.label(default = _TOOLCHAIN),
    },
    fragments = ["cpp"],
)

def _precompiled_flags_impl(ctx):
    context = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    folders = depset(transitive = [context.includes, context.system_includes]).to_list()
    _, compiler = _compiler(ctx)
    for choice in ctx.attr._for_tests if ctx.attr.testonly else ctx.attr._for_libraries:
        info = choice[_PrecompiledInfo]
        needed = depset(transitive = [info.context.includes, info.context.system_includes]).to_list()
        if not [folder for folder in needed if folder not in folders]:
            options = _OPTIONS_OF_ALL + ["-include", info.header.path] + _options(compiler, ctx.attr.testonly)
            ctx.actions.write(ctx.outputs.out, " ".join(options) + "\n")
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
        "_cc_toolchain": attr.label(default = _TOOLCHAIN),
    },
    fragments = ["cpp"],
)
