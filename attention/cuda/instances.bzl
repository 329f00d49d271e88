"""The explicit instantiations of the attention kernels, from tables.

Each instance is a .cu of its own, which Bazel writes, so that they compile side by side:

    #include "reprise/attention/cuda/hopper/warpgroup_kernel.cuh"

    namespace reprise {
    template cudaError_t LaunchWarpgroupAttention<DType::kFloat16, 64, KvLoading::kDirect>(
        const AttentionKernelParams&, cudaStream_t);
    template int WarpgroupSharedBytes<DType::kFloat16, 64, KvLoading::kDirect>();
    }  // namespace reprise

The tables here are those of attention/cuda/attention_dispatch.cc: a kernel that it names and that is
missing here does not link.
"""

_DTYPES = {"bf16": "DType::kBFloat16", "f16": "DType::kFloat16", "f32": "DType::kFloat32"}

_LOADINGS = {
    "converted": "KvLoading::kConverted",
    "direct": "KvLoading::kDirect",
    "fp8": "KvLoading::kFp8",
}

# Head dim of K: rows of q of the tiles of 16-bit types. Those of float32 have 16 rows.
_TILE_ROWS = {64: [16, 128], 128: [16, 128], 256: [16, 64], 512: [16, 64], 576: [16, 64]}

def _write_instance_impl(ctx):
    ctx.actions.write(ctx.outputs.out, ctx.attr.text)

_write_instance = rule(
    implementation = _write_instance_impl,
    attrs = {
        "out": attr.output(mandatory = True),
        "text": attr.string(mandatory = True),
    },
)

def _write_instances(header, launcher, shared_bytes, instances):
    """Writes a .cu for each instance.

    Args:
      header: the file of the template.
      launcher: the function template that launches the kernel.
      shared_bytes: the function template that returns its shared memory.
      instances: file name without .cu: template arguments, one text for each kernel in the file.

    Returns:
      The names of the files.
    """
    for stem, kernels in instances.items():
        lines = ["#include \"reprise/%s\"" % header, "", "namespace reprise {"]
        for arguments in kernels:
            lines += [
                "template cudaError_t %s<%s>(" % (launcher, arguments),
                "    const AttentionKernelParams&, cudaStream_t);",
                "template int %s<%s>();" % (shared_bytes, arguments),
            ]
        lines += ["}  // namespace reprise", ""]
        _write_instance(
            name = stem + "_instance",
            out = stem + ".cu",
            tags = ["manual"],
            text = "\n".join(lines),
            visibility = ["//visibility:private"],
        )
    return [stem + ".cu" for stem in instances]

def _starts_ahead(head_dim, tile_rows, loading):
    """StartsAhead() of attention/cuda/decode/decode_launchers.h."""
    return tile_rows == 16 and head_dim <= 128 and loading != "converted"

def general_instances():
    """Writes the instances of attention_kernel.cuh, a file for each type, head dim and way of loading.

    Returns:
      The names of the files: srcs of a reprise_cuda_library.
    """
    instances = {}
    for name, loadings in {
        "bf16": ["converted", "direct"],
        "f16": ["converted", "direct", "fp8"],
        "f32": ["converted"],
    }.items():
        for head_dim, rows in _TILE_ROWS.items():
            for loading in loadings:
                stem = "attention_%s_d%d_%s" % (name, head_dim, loading)
                instances[stem] = [
                    "AttentionTileIndex(%s, %d, %d), %s" %
                    (_DTYPES[name], head_dim, tile_rows, _LOADINGS[loading])
                    for tile_rows in (rows if name != "f32" else [16])
                    if not _starts_ahead(head_dim, tile_rows, loading)
                ]
    return _write_instances(
        "attention/cuda/general/attention_kernel.cuh",
        "LaunchAttention",
        "AttentionSharedBytes",
        instances,
    )

def decode_instances():
    """Writes the instances of decode_kernel.cuh. Returns the names of the files."""
    instances = {}
    for name, loading in [("bf16", "direct"), ("f16", "direct"), ("f16", "fp8")]:
        for head_dim in [64, 128]:
            instances["decode_%s_d%d_%s" % (name, head_dim, loading)] = [
                "AttentionTileIndex(%s, %d, 16), %s" % (_DTYPES[name], head_dim, _LOADINGS[loading]),
            ]
    return _write_instances(
        "attention/cuda/decode/decode_kernel.cuh",
        "LaunchDecodeAttention",
        "DecodeSharedBytes",
        instances,
    )

def hopper_instances():
    """Writes the instances of warpgroup_kernel.cuh. Returns the names of the files."""
    header = "attention/cuda/hopper/warpgroup_kernel.cuh"
    squares = {}
    heads = {}
    for name, loading in [("bf16", "direct"), ("f16", "direct"), ("f16", "fp8")]:
        for head_dim in [64, 128]:
            squares["warpgroup_%s_d%d_%s" % (name, head_dim, loading)] = [
                "%s, %d, %s" % (_DTYPES[name], head_dim, _LOADINGS[loading]),
            ]
        for qk, v in [(96, 96), (192, 128), (256, 256)]:
            if loading == "fp8" and qk != v:
                continue
            heads["warpgroup_%s_d%d_%s" % (name, qk, loading)] = [
                "%s, %d, %d, %s" % (_DTYPES[name], qk, v, _LOADINGS[loading]),
            ]
    return _write_instances(
        header,
        "LaunchWarpgroupAttention",
        "WarpgroupSharedBytes",
        squares,
    ) + _write_instances(
        header,
        "LaunchWarpgroupHeads",
        "WarpgroupHeadsSharedBytes",
        heads,
    )

def verify_instances():
    """Writes the instances of verify_kernel.cuh. Returns the names of the files."""
    instances = {}
    for name, loading in [("bf16", "direct"), ("f16", "direct"), ("f16", "fp8")]:
        for head_dim in [64, 128]:
            instances["verify_%s_d%d_%s" % (name, head_dim, loading)] = [
                "VerifyTileIndex(%s, %d), %s" % (_DTYPES[name], head_dim, _LOADINGS[loading]),
            ]
    return _write_instances(
        "attention/cuda/verify/verify_kernel.cuh",
        "LaunchVerifyAttention",
        "VerifySharedBytes",
        instances,
    )

def latent_instances():
    """Writes the instances of latent_kernel.cuh. Returns the names of the files."""
    return _write_instances(
        "attention/cuda/latent/latent_kernel.cuh",
        "LaunchLatentAttention",
        "LatentSharedBytes",
        {"latent_" + name: [_DTYPES[name]] for name in ["bf16", "f16"]},
    )
