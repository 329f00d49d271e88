"""Reprise's operators for PyTorch: attention over paged caches, and what a step of it needs.

    import reprise_ops

    out, lse = reprise_ops.paged_attention(q, k_cache, v_cache, block_table, seq_lens, query_start_loc)

Each function is torch.ops.reprise.<name>, with its overloads: reprise_ops.paged_attention.out(...). Importing
the package registers them.
"""

import ctypes
import os

import torch

from ._build import LIBRARIES, TORCH_VERSION, __version__

__all__ = [
    "advance_step", "copy_blocks", "local_virtual_batches", "merge_states", "paged_attention", "ragged_attention",
    "ragged_tile_schedule", "read_kv", "swap_blocks", "tile_schedule", "tile_schedule_plan", "write_kv", "write_latent_kv",
]

if torch.__version__.split("+")[0].split(".")[:2] != TORCH_VERSION.split(".")[:2]:
    raise ImportError(f"reprise_ops {__version__} was built for torch {TORCH_VERSION}: this is {torch.__version__}")

_folder = os.path.dirname(os.path.abspath(__file__))
# What the operators link, in an order in which each finds what it needs among those that are loaded already.
_loaded = [ctypes.CDLL(os.path.join(_folder, name)) for name in LIBRARIES]
torch.ops.load_library(os.path.join(_folder, "libreprise_ops.so"))


def __getattr__(name):
    if name in __all__:
        return getattr(torch.ops.reprise, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted(__all__ + ["__version__"])
