"""Types of the operators. docs/operators.md says what each argument is."""

from collections.abc import Sequence

from torch import Tensor, device, dtype

__version__: str


def advance_step(
        sampled: Tensor, block_table: Tensor, seq_lens: Tensor, table_row: Tensor, query_start_loc: Tensor,
        token_ids: Tensor, positions: Tensor, slot_mapping: Tensor, row_faults: Tensor, *, block_size: int,
        num_blocks: int, max_context_len: int, block_indptr: Tensor | None = None, block_indices: Tensor | None = None,
        last_block_len: Tensor | None = None) -> None:
    """Updates the arrays of a decode step in place for the next one, from the sampled tokens; a packed table as well."""


def copy_blocks(
        caches: Sequence[Tensor], pairs: Tensor) -> None:
    """Copies blocks within each of the caches, all pairs (source, destination) at once."""


def local_virtual_batches(
        block_table: Tensor, seq_lens: Tensor, query_start_loc: Tensor, *, chunk_size: int, num_tokens: int,
        table_row: Tensor | None = None, key_start: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Chunked-local attention as rows of paged_attention."""


class _MergeStates:
    def __call__(
            self, outs: Sequence[Tensor], lses: Sequence[Tensor], *, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Attention over all keys from parts over disjoint keys."""

    def out(
            self, outs: Sequence[Tensor], lses: Sequence[Tensor], *, sinks: Tensor | None = None,
            out: Tensor, lse: Tensor | None = None) -> Tensor:
        """The same into tensors of the caller."""


merge_states: _MergeStates


class _PagedAttention:
    def __call__(
            self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
            query_start_loc: Tensor, *, table_row: Tensor | None = None, key_start: Tensor | None = None,
            query_positions: Tensor | None = None, tail_len: Tensor | None = None,
            tail_mask: Tensor | None = None, common_prefix_len: Tensor | None = None,
            key_positions: Sequence[int] | None = None, causal: bool = True,
            max_query_len: int | None = None, max_seq_len: int | None = None,
            custom_mask: Tensor | None = None, custom_mask_offset: Tensor | None = None, layout: str = "NHD",
            kv_dtype: str | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
            scale: float | None = None, window_left: int | None = None, window_right: int | None = None,
            softcap: float | None = None, alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
            q_scale: Tensor | None = None, rope_theta: float | None = None, rope_scale: float = 1.0,
            rotary_dim: int = 0, block_sparse: Sequence[int] | None = None,
            q_head_scales: Tensor | None = None, rope_cache: Tensor | None = None,
            rope_cache_scale: Tensor | None = None, new_k: Tensor | None = None, new_v: Tensor | None = None,
            out_scale: Tensor | None = None, out_block_scales: Tensor | None = None,
            products: dtype | None = None, max_tier: int = 2, plan: Tensor | None = None,
            workspace: Tensor | None = None, deterministic: bool = False, out_dtype: dtype | None = None) -> tuple[Tensor, Tensor]:
        """Attention of packed queries over a paged cache."""

    def out(
            self, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
            query_start_loc: Tensor, *, table_row: Tensor | None = None, key_start: Tensor | None = None,
            query_positions: Tensor | None = None, tail_len: Tensor | None = None,
            tail_mask: Tensor | None = None, common_prefix_len: Tensor | None = None,
            key_positions: Sequence[int] | None = None, causal: bool = True,
            max_query_len: int | None = None, max_seq_len: int | None = None,
            custom_mask: Tensor | None = None, custom_mask_offset: Tensor | None = None, layout: str = "NHD",
            kv_dtype: str | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
            scale: float | None = None, window_left: int | None = None, window_right: int | None = None,
            softcap: float | None = None, alibi_slopes: Tensor | None = None, sinks: Tensor | None = None,
            q_scale: Tensor | None = None, rope_theta: float | None = None, rope_scale: float = 1.0,
            rotary_dim: int = 0, block_sparse: Sequence[int] | None = None,
            q_head_scales: Tensor | None = None, rope_cache: Tensor | None = None,
            rope_cache_scale: Tensor | None = None, new_k: Tensor | None = None, new_v: Tensor | None = None,
            out_scale: Tensor | None = None, out_block_scales: Tensor | None = None,
            products: dtype | None = None, max_tier: int = 2, plan: Tensor | None = None,
            workspace: Tensor | None = None, deterministic: bool = False, out: Tensor,
            lse: Tensor | None = None) -> Tensor:
        """The same into tensors of the caller."""


paged_attention: _PagedAttention


class _RaggedAttention:
    def __call__(
            self, q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, key_start_loc: Tensor, *,
            query_positions: Tensor | None = None, causal: bool = True, max_query_len: int | None = None,
            max_seq_len: int | None = None, custom_mask: Tensor | None = None,
            custom_mask_offset: Tensor | None = None, kv_dtype: str | None = None,
            k_scale: Tensor | None = None, v_scale: Tensor | None = None, scale: float | None = None,
            window_left: int | None = None, window_right: int | None = None, softcap: float | None = None,
            alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, q_scale: Tensor | None = None,
            rope_theta: float | None = None, rope_scale: float = 1.0, rotary_dim: int = 0,
            block_sparse: Sequence[int] | None = None, q_head_scales: Tensor | None = None,
            out_scale: Tensor | None = None, out_block_scales: Tensor | None = None,
            products: dtype | None = None, max_tier: int = 2, plan: Tensor | None = None,
            workspace: Tensor | None = None, deterministic: bool = False, out_dtype: dtype | None = None) -> tuple[Tensor, Tensor]:
        """Attention over contiguous keys, without a cache."""

    def out(
            self, q: Tensor, k: Tensor, v: Tensor, query_start_loc: Tensor, key_start_loc: Tensor, *,
            query_positions: Tensor | None = None, causal: bool = True, max_query_len: int | None = None,
            max_seq_len: int | None = None, custom_mask: Tensor | None = None,
            custom_mask_offset: Tensor | None = None, kv_dtype: str | None = None,
            k_scale: Tensor | None = None, v_scale: Tensor | None = None, scale: float | None = None,
            window_left: int | None = None, window_right: int | None = None, softcap: float | None = None,
            alibi_slopes: Tensor | None = None, sinks: Tensor | None = None, q_scale: Tensor | None = None,
            rope_theta: float | None = None, rope_scale: float = 1.0, rotary_dim: int = 0,
            block_sparse: Sequence[int] | None = None, q_head_scales: Tensor | None = None,
            out_scale: Tensor | None = None, out_block_scales: Tensor | None = None,
            products: dtype | None = None, max_tier: int = 2, plan: Tensor | None = None,
            workspace: Tensor | None = None, deterministic: bool = False, out: Tensor,
            lse: Tensor | None = None) -> Tensor:
        """The same into tensors of the caller."""


ragged_attention: _RaggedAttention


class _RaggedTileSchedule:
    def __call__(
            self, query_start_loc: Tensor, key_start_loc: Tensor, plan: Tensor, *,
            query_positions: Tensor | None = None, causal: bool = True, max_query_len: int | None = None,
            max_seq_len: int | None = None, custom_mask: Tensor | None = None,
            custom_mask_offset: Tensor | None = None, num_tokens: int | None = None,
            window_left: int | None = None, window_right: int | None = None) -> Tensor:
        """As tile_schedule(), for ragged_attention()."""

    def out(
            self, query_start_loc: Tensor, key_start_loc: Tensor, plan: Tensor, *,
            query_positions: Tensor | None = None, causal: bool = True, max_query_len: int | None = None,
            max_seq_len: int | None = None, custom_mask: Tensor | None = None,
            custom_mask_offset: Tensor | None = None, num_tokens: int | None = None,
            window_left: int | None = None, window_right: int | None = None, workspace: Tensor) -> Tensor:
        """The same into tensors of the caller."""


ragged_tile_schedule: _RaggedTileSchedule


class _ReadKv:
    def __call__(
            self, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *, dtype: dtype,
            layout: str = "NHD", kv_dtype: str | None = None, k_scale: Tensor | None = None,
            v_scale: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values by slot, dequantised."""

    def out(
            self, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *, layout: str = "NHD",
            kv_dtype: str | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None,
            k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The same into tensors of the caller."""


read_kv: _ReadKv


def swap_blocks(
        src: Sequence[Tensor], dst: Sequence[Tensor], pairs: Tensor) -> None:
    """Copies blocks between lists of tensors on any two devices, on the current stream."""


class _TileSchedule:
    def __call__(
            self, block_table: Tensor, seq_lens: Tensor, query_start_loc: Tensor, plan: Tensor, *,
            table_row: Tensor | None = None, key_start: Tensor | None = None,
            query_positions: Tensor | None = None, tail_len: Tensor | None = None,
            tail_mask: Tensor | None = None, common_prefix_len: Tensor | None = None,
            key_positions: Sequence[int] | None = None, causal: bool = True,
            max_query_len: int | None = None, max_seq_len: int | None = None,
            custom_mask: Tensor | None = None, custom_mask_offset: Tensor | None = None,
            num_tokens: int | None = None, window_left: int | None = None, window_right: int | None = None) -> Tensor:
        """Divides the attention of a batch among the multiprocessors, once for all layers."""

    def out(
            self, block_table: Tensor, seq_lens: Tensor, query_start_loc: Tensor, plan: Tensor, *,
            table_row: Tensor | None = None, key_start: Tensor | None = None,
            query_positions: Tensor | None = None, tail_len: Tensor | None = None,
            tail_mask: Tensor | None = None, common_prefix_len: Tensor | None = None,
            key_positions: Sequence[int] | None = None, causal: bool = True,
            max_query_len: int | None = None, max_seq_len: int | None = None,
            custom_mask: Tensor | None = None, custom_mask_offset: Tensor | None = None,
            num_tokens: int | None = None, window_left: int | None = None, window_right: int | None = None,
            workspace: Tensor) -> Tensor:
        """The same into tensors of the caller."""


tile_schedule: _TileSchedule


def tile_schedule_plan(
        *, num_q_heads: int, num_kv_heads: int, head_dim_qk: int, head_dim_v: int, max_rows: int,
        max_tokens: int, max_query_len: int = 1, max_seq_len: int, dtype: dtype, deterministic: bool = False,
        device: device | str = "cuda", shared_prefix: bool = False, products: dtype | None = None,
        max_splits: int | None = None, max_tier: int = 2) -> Tensor:
    """The sizes of a tile schedule; int64 on the CPU, plan[0] is the bytes of workspace."""


def write_kv(
        k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, *, layout: str = "NHD",
        kv_dtype: str | None = None, k_scale: Tensor | None = None, v_scale: Tensor | None = None) -> None:
    """Writes keys and values into a paged cache by slot."""


def write_latent_kv(
        latent: Tensor, rope: Tensor, cache: Tensor, slot_mapping: Tensor, *, kv_dtype: str | None = None,
        scale: Tensor | None = None, rope_cache: Tensor | None = None,
        rope_cache_scale: Tensor | None = None) -> None:
    """Writes an MLA cache from its two parts."""
