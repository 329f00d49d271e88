"""A library that is installed on the machine, as a target.

Used in the BUILD files that the repository rules of this folder generate. Its headers lie where the
compiler looks by itself, and Bazel does not track files there: what tells one version of the
library from the next is `stamp`, a file that is an input of each compilation and each link.
"""

load("@reprise_rules//:cc.bzl", CcInfo = "cc_info", cc_common = "cc_tools")

def _system_cc_library_impl(ctx):
    stamp = depset([ctx.file.stamp] if ctx.file.stamp else [])
    compilation_context = cc_common.create_compilation_context(
        headers = stamp,
        defines = depset(ctx.attr.defines),
    )
    linking_context = cc_common.create_linking_context(
        linker_inputs = depset([cc_common.create_linker_input(
            owner = ctx.label,
            user_link_flags = depset(ctx.attr.linkopts),
            additional_inputs = stamp,
        )]),
    )
    own = CcInfo(
        compilation_context = compilation_context,
        linking_context = linking_context,
    )
    return [
        DefaultInfo(),
        cc_common.merge_cc_infos(
            direct_cc_infos = [own],
            cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
        ),
    ]

system_cc_library = rule(
    implementation = _system_cc_library_impl,
    attrs = {
        "defines": attr.string_list(),
        "linkopts": attr.string_list(doc = "Given to every link that the library gets into."),
        "stamp": attr.label(allow_single_file = True, doc = "Changes when the library changes."),
        "deps": attr.label_list(providers = [CcInfo]),
    },
)

def _missing_library_impl(ctx):
    fail(ctx.attr.message)

missing_library = rule(
    implementation = _missing_library_impl,
    attrs = {"message": attr.string(mandatory = True)},
    doc = "Stands for a library that was not found. Only a build that needs it fails.",
)
