"""Storage of K and V: one pool, cut into a K and a V array per layer.

Layout ``[num_blocks, num_kv_heads, block_size, head_dim]``. Block 0 is the zeroed scratch block
that dead rows point at. Which sequence owns which block is the block manager's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from cugraphs.kernel import ArrayType
from cugraphs.program import Buffer
from cugraphs.trace import Tracer


@dataclass(frozen=True)
class KVCacheShape:
    """Sizes of the paged cache of one model.

    Args:
        num_layers: layers that each have a K and a V array.
        num_blocks: blocks in the pool, the scratch block included.
        block_size: tokens in a block.
        max_model_len: tokens that one sequence can hold.
    """

    num_layers: int
    num_blocks: int
    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: str
    max_model_len: int

    @property
    def layer_type(self) -> ArrayType:
        """The type of one layer's K, or V."""
        shape = (self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim)
        return ArrayType(shape, self.dtype)

    @property
    def max_blocks(self) -> int:
        """Blocks of one sequence of ``max_model_len`` tokens: the width of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, K and V."""
        return self.layer_type.nbytes // self.num_blocks * 2 * self.num_layers

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.bytes_per_block * self.num_blocks

    def declare(self, tracer: Tracer, layer: int) -> tuple[Buffer, Buffer]:
        """Declare the K and V buffers of ``layer`` in a trace."""
        type_ = self.layer_type
        k, v = (tracer.state(name, type_.shape, type_.dtype) for name in _buffer_names(layer))
        return k, v

    @property
    def types(self) -> dict[str, ArrayType]:
        """The type of every layer's K and V, by buffer name."""
        layers = range(self.num_layers)
        return {name: self.layer_type for layer in layers for name in _buffer_names(layer)}


def _buffer_names(layer: int) -> tuple[str, str]:
    return f"model.layers.{layer}.k_cache", f"model.layers.{layer}.v_cache"
