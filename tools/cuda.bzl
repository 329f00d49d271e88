"""Compiles .cu files with nvcc, one action each.

Every header of the deps is an input of each compilation, so that a change of any of them compiles
again; keep the deps of kernels narrow.
"""

load("@reprise_rules//:cc.bzl", CcInfo = "cc_info", cc_common = "cc_tools")

# Ampere and Hopper, and PTX that the driver can compile for everything newer than sm_80. Others by
# --define=reprise_cuda_archs=89,120+ptx.
DEFAULT_ARCHS = ["80+ptx", "90"]

_NVCC_COPTS = [
    "-std=c++20",
    "-O3",
    "-lineinfo",
    "--expt-relaxed-constexpr",
    "-Werror=all-warnings",
    "-Xcompiler=-fPIC,-Wall,-Wextra,-Werror",
    # Sandboxes share /tmp, where nvcc names its files by process number: which is 2 in each of them.
    "--objdir-as-tempdir",
]

def _default_archs(ctx):
    """Returns what kernels are compiled for that do not name their architectures themselves."""
    named = ctx.var.get("reprise_cuda_archs", "")
    return named.split(",") if named else DEFAULT_ARCHS

def _gencode(arch):
    """Returns the nvcc options for "90a" (machine code) or "80+ptx" (machine code and PTX)."""
    number, _, kind = arch.partition("+")
    digits = number[:-1] if number[-1:] in ["a", "f"] else number
    if kind not in ["", "ptx"] or not digits.isdigit() or int(digits) < 80 or arch.endswith("+"):
        fail("archs: expected 80 or newer, like \"90a\" or \"80+ptx\", got \"%s\"" % arch)
    code = ["sm_" + number] + (["compute_" + number] if kind else [])
    return "-gencode=arch=compute_%s,code=[%s]" % (number, ",".join(code))

def _cuda_objects_impl(ctx):
    merged = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    root = ctx.label.workspace_root or "."

    options = ctx.actions.args()
    options.add_all([
        option
        for option in _NVCC_COPTS
        if option != "-lineinfo" or ctx.attr.line_info
    ])
    options.add_all([_gencode(arch) for arch in ctx.attr.archs or _default_archs(ctx)])
    options.add_all(ctx.attr.nvcc_copts)

    # --config=racecheck: see base/warp_arrivals.cuh.
    if ctx.var.get("reprise_racecheck", "") == "yes":
        options.add("-DREPRISE_EVERY_LANE_ARRIVES")
    options.add_all(merged.defines, format_each = "-D%s")
    options.add_all([root, ctx.genfiles_dir.path + "/" + root], format_each = "-I%s")

    # nvcc has no -iquote.
    options.add_all(merged.quote_includes, format_each = "-I%s", uniquify = True)
    options.add_all(merged.includes, format_each = "-I%s", uniquify = True)
    options.add_all(merged.system_includes, before_each = "-isystem", uniquify = True)

    objects = []
    for source in ctx.files.srcs:
        stem = source.basename[:-len(".cu")]
        object = ctx.actions.declare_file("_objs/%s/%s.pic.o" % (ctx.label.name, stem))
        output = ctx.actions.args()
        output.add("-c", source)
        output.add("-o", object)
        ctx.actions.run(
            executable = ctx.executable._nvcc,
            arguments = [options, output],
            inputs = depset([source] + ctx.files.hdrs, transitive = [merged.headers]),
            outputs = [object],
            mnemonic = "NvccCompile",
            progress_message = "Compiling %s with nvcc" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"]),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "archs": attr.string_list(),
        "line_info": attr.bool(default = True),
        "nvcc_copts": attr.string_list(),
        "_nvcc": attr.label(
            default = "@cuda//:nvcc",
            allow_single_file = True,
            cfg = "exec",
            executable = True,
        ),
    },
)
