"""Gives headers the paths by which sources include them: "reprise/base/check.h" for base/check.h.

Each package has one folder of links to its headers, which is on the include paths of what depends on them.
cc_library's include_prefix would add a folder for each target, and ignores textual_hdrs in Bazel 4.2.
"""

load("@reprise_rules//:cc.bzl", CcInfo = "cc_info", cc_common = "cc_tools")

def _include_paths_impl(ctx):
    links = []
    for header in ctx.files.headers:
        # short_path of a file of another repository begins with "../NAME/".
        path = header.short_path
        if path.startswith("../"):
            path = path.split("/", 2)[2]
        if path.startswith("examples/"):
            path = path[len("examples/"):]
        link = ctx.actions.declare_file("%s/reprise/%s" % (ctx.attr.folder, path))
        ctx.actions.symlink(output = link, target_file = header)
        links.append(link)
    root = [ctx.bin_dir.path, ctx.label.workspace_root, ctx.label.package, ctx.attr.folder]
    context = cc_common.create_compilation_context(
        headers = depset(links),
        # For #include "..." alone: the thousands of #include <...> of LibTorch are not looked for here.
        quote_includes = depset(["/".join([part for part in root if part])]),
    )
    return [DefaultInfo(files = depset(links)), CcInfo(compilation_context = context)]

include_paths = rule(
    implementation = _include_paths_impl,
    attrs = {
        "folder": attr.string(
            default = "_include",
            doc = "Of the links. Targets of a package may share it if they share no header.",
        ),
        "headers": attr.label_list(allow_files = True),
    },
)
