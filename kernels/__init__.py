"""Every kernel of the project, one pair of files each; tests and benchmarks iterate over ``ALL``.

Imports no CuPy.
"""

from .add import ADD
from .add_rms_norm import ADD_RMS_NORM
from .advance import ADVANCE
from .apply_changes import APPLY_CHANGES
from .attention_parts import ATTENTION_PARTS
from .begin_rows import BEGIN_ROWS
from .copy_blocks import COPY_BLOCKS
from .decode_layer import DECODE_LAYER
from .decode_rows import DECODE_ROWS
from .embedding import EMBEDDING
from .linear import LINEAR
from .linear_add import LINEAR_ADD
from .linear_add_rms_norm import LINEAR_ADD_RMS_NORM
from .linear_residual import LINEAR_RESIDUAL
from .linear_rope_append import LINEAR_ROPE_APPEND
from .linear_swiglu import LINEAR_SWIGLU
from .logprobs import LOGPROBS
from .loop_control import LOOP_CONTROL
from .mixed_rows import MIXED_ROWS
from .norm_linear import NORM_LINEAR
from .norm_rope_append import NORM_ROPE_APPEND
from .norm_swiglu import NORM_SWIGLU
from .paged_decode_attention import PAGED_DECODE_ATTENTION
from .paged_prefill_attention import PAGED_PREFILL_ATTENTION
from .rms_norm import RMS_NORM
from .rope_append import ROPE_APPEND
from .rope_append_attention import ROPE_APPEND_ATTENTION
from .sample import SAMPLE
from .silu_and_mul import SILU_AND_MUL

ALL = (
    APPLY_CHANGES,
    COPY_BLOCKS,
    DECODE_ROWS,
    MIXED_ROWS,
    BEGIN_ROWS,
    EMBEDDING,
    ADD,
    RMS_NORM,
    ADD_RMS_NORM,
    LINEAR,
    LINEAR_ADD,
    LINEAR_ADD_RMS_NORM,
    LINEAR_RESIDUAL,
    LINEAR_ROPE_APPEND,
    LINEAR_SWIGLU,
    NORM_LINEAR,
    NORM_ROPE_APPEND,
    NORM_SWIGLU,
    ROPE_APPEND,
    ATTENTION_PARTS,
    PAGED_DECODE_ATTENTION,
    ROPE_APPEND_ATTENTION,
    DECODE_LAYER,
    PAGED_PREFILL_ATTENTION,
    SILU_AND_MUL,
    SAMPLE,
    LOGPROBS,
    ADVANCE,
    LOOP_CONTROL,
)

__all__ = [
    "ADD",
    "ADD_RMS_NORM",
    "ADVANCE",
    "ALL",
    "APPLY_CHANGES",
    "ATTENTION_PARTS",
    "BEGIN_ROWS",
    "COPY_BLOCKS",
    "DECODE_LAYER",
    "DECODE_ROWS",
    "EMBEDDING",
    "LINEAR",
    "LINEAR_ADD",
    "LINEAR_ADD_RMS_NORM",
    "LINEAR_RESIDUAL",
    "LINEAR_ROPE_APPEND",
    "LINEAR_SWIGLU",
    "LOGPROBS",
    "LOOP_CONTROL",
    "MIXED_ROWS",
    "NORM_LINEAR",
    "NORM_ROPE_APPEND",
    "NORM_SWIGLU",
    "PAGED_DECODE_ATTENTION",
    "PAGED_PREFILL_ATTENTION",
    "RMS_NORM",
    "ROPE_APPEND",
    "ROPE_APPEND_ATTENTION",
    "SAMPLE",
    "SILU_AND_MUL",
]
