"""A library of which dependents link the code, but see no header."""

load("@reprise_rules//:cc.bzl", CcInfo = "cc_info", cc_common = "cc_tools")

def _link_only_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    return [
        DefaultInfo(),
        CcInfo(linking_context = merged.linking_context),
    ]

link_only = rule(
    implementation = _link_only_impl,
    doc = "Between a library's header and its code: headers that the code alone includes are no inputs " +
          "of what depends on the library, which is not compiled again when they change.",
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
