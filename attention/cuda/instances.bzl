"""The explicit instantiations of the attention kernels, from tables.

Each instance is a .cu of its own, which Bazel writes, so that they compile side by side:

    #include "reprise/attention/cuda/hopper/warpgroup_kernel.cuh"

    namespace reprise {
    template cudaError_t LaunchWarpgroupAttention<KernelIndex(
        DType::kFloat16, 64, 128, KvLoading::kDirect, KernelFamily::kWarpgroup)>(
        const AttentionKernelParams&, cudaStream_t);
    }  // namespace reprise

These tables repeat the rows of kAttentionKernels (attention/cuda/tiles.h). A row that is missing here
fails to link, and a row that exists only here fails to compile.
"""

_DTYPES = {"bf16": "DType::kBFloat16", "f16": "DType::kFloat16", "f32": "DType::kFloat32"}

_LOADINGS = {
    "converted": "KvLoading::kConverted",
    "direct": "KvLoading::kDirect",
    "fp8": "KvLoading::kFp8",
}

# Maps the head dim of K to the query rows of the general kernels with 16-bit MMA types: first the
# kernels that do not convert keys, then the kernels that do. All tiles of float32 have 16 rows.
_GENERAL_ROWS = {
    64: ([128], [16, 128]),
    128: ([128], [16, 128]),
    256: ([16, 64], [16, 64]),
    512: ([16, 64], [16, 64]),
    576: ([16, 64], [16, 64]),
}

def _write_instance_impl(ctx):
    ctx.actions.write(ctx.outputs.out, ctx.attr.text)

_write_instance = rule(
    implementation = _write_instance_impl,
    attrs = {
        "out": attr.output(mandatory = True),
        "text": attr.string(mandatory = True),
    },
)

def _write_instances(room, family, instances):
    """Writes a .cu for each instance.

    Args:
      room: the file of the template, below attention/cuda.
      family: of KernelFamily, whose launcher is instantiated.
      instances: file name without .cu: (type, head dim of K, rows of q, loading) of each kernel in
        the file, by the names of _DTYPES and _LOADINGS.

    Returns:
      The names of the files.
    """
    for stem, kernels in instances.items():
        lines = ["#include \"reprise/attention/cuda/%s\"" % room, "", "namespace reprise {"]
        for dtype, head_dim, rows, loading in kernels:
            lines += [
                "template cudaError_t Launch%sAttention<KernelIndex(" % family,
                "    %s, %d, %d, %s, KernelFamily::k%s)>(" %
                (_DTYPES[dtype], head_dim, rows, _LOADINGS[loading], family),
                "    const AttentionKernelParams&, cudaStream_t);",
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

def general_instances():
    """Writes the instances of attention_kernel.cuh, a file for each type, head dim and way of loading.

    Returns:
      The names of the files: srcs of a reprise_cuda_library.
    """
    instances = {}
    for dtype, loadings in {
        "bf16": ["converted", "direct"],
        "f16": ["converted", "direct", "fp8"],
        "f32": ["converted"],
    }.items():
        for head_dim, (unconverted, converted) in _GENERAL_ROWS.items():
            for loading in loadings:
                rows = converted if loading == "converted" else unconverted
                instances["attention_%s_d%d_%s" % (dtype, head_dim, loading)] = [
                    (dtype, head_dim, tile_rows, loading)
                    for tile_rows in (rows if dtype != "f32" else [16])
                ]
    return _write_instances("general/attention_kernel.cuh", "General", instances)

# Types and ways of loading of the kernels that do not convert keys.
_UNCONVERTED = [("bf16", "direct"), ("f16", "direct"), ("f16", "fp8")]

def decode_instances():
    """Writes the instances of decode_kernel.cuh. Returns the names of the files."""
    return _write_instances("decode/decode_kernel.cuh", "Decode", {
        "decode_%s_d%d_rows%d_%s" % (dtype, head_dim, rows, loading): [(dtype, head_dim, rows, loading)]
        for dtype, loading in _UNCONVERTED
        for head_dim in [64, 128]
        for rows in [16, 32]
    })

def hopper_instances():
    """Writes the instances of warpgroup_kernel.cuh. Returns the names of the files."""
    return _write_instances("hopper/warpgroup_kernel.cuh", "Warpgroup", {
        "warpgroup_%s_d%d_%s" % (dtype, head_dim, loading): [(dtype, head_dim, 128, loading)]
        for dtype, loading in _UNCONVERTED
        for head_dim in [64, 96, 128, 192, 256]
        if loading != "fp8" or head_dim != 192
    })

def mla_instances():
    """Writes the instances of mla_kernel.cuh. Returns the names of the files."""
    return _write_instances("mla/mla_kernel.cuh", "Mla", {
        "mla_" + dtype: [(dtype, 576, 64, "direct")]
        for dtype in ["bf16", "f16"]
    })
