"""How ``stream_linear.cuh`` shares a weight among teams of warps, for few rows of 16-bit types.

Knows sizes and dtypes, not the kernels' text. The choices are the best of those tried on an H200,
over the shapes of Llama's 1B and 8B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cugraphs.kernel import CUDA_TYPES, Axes, Case

from .benchmark_sizes import MATRICES
from .case_arrays import Make
from .launch_shapes import MULTIPROCESSORS

STREAM_DTYPES = ("bfloat16", "float16")
MAX_ROWS = 16
MAX_ADD_ROWS = 8  # above, what adds parts' sums adds the residual too
MAX_NORM_ROWS = 8  # of the kernels that normalise
_FRAGMENT_ROWS = 8  # at most, of one fragment
MAX_NORM_BYTES = 94 << 10  # of the rows that a block normalises: what every card has room for

MAX_CACHED_BYTES = 160 << 10  # of more rows than these, which a block reads from its L1 cache

_SEGMENT = 32  # elements of k in a piece of a row
_LEAST_STEP = 2 * _SEGMENT  # that a warp loads of a row
_VECTOR = 8  # elements of a load
_BYTES = 2  # of an element
_HELD_VECTORS = 4  # of the norm's weight that a thread holds
_LARGE = 4096  # rows and columns of a weight from which blocks are of 16 warps, to 2 rows of x


@dataclass(frozen=True)
class Teams:
    """How a block's warps share the work.

    Args:
        row_teams: teams of a block, each with columns of its own.
        depth_warps: warps of a team, which share in_features.
        groups: rows of the weight at once, in groups of 8 / segments.
        ahead: loads of each group under way.
    """

    row_teams: int
    depth_warps: int
    groups: int
    ahead: int


# By segments and fragments, best first: 8 pieces for up to 2 rows, 4 for up to 4, 2 for up to 8,
# and two fragments of them for up to 16. Blocks of 16 warps fill a multiprocessor alone, so they
# lie evenly however early they are placed.
_LARGE_TEAMS = Teams(8, 2, 2, 4)
_CHOICES = {
    (8, 1): (Teams(4, 2, 2, 4), Teams(8, 1, 2, 7)),
    (4, 1): (Teams(1, 8, 2, 4), Teams(2, 4, 2, 4), Teams(4, 2, 2, 4)),
    (2, 1): (Teams(1, 8, 2, 4), Teams(2, 4, 2, 4), Teams(4, 2, 2, 4)),
    (2, 2): (Teams(4, 4, 4, 2), Teams(1, 8, 4, 2)),
}
_MAX_AHEAD = 8  # where none of them divides the row: a warp has it all


@dataclass(frozen=True)
class StreamShape:
    """One launch.

    Args:
        segments: pieces of a row in a fragment.
        fragments: of all rows.
        teams: of a block.
        blocks: of the launch.
    """

    segments: int
    fragments: int
    teams: Teams
    blocks: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * self.teams.row_teams * self.teams.depth_warps

    def function(self, name: str, dtype: str, *, normalised: bool = False) -> str:
        """The C++ name of a kernel of this shape, whose blocks may have ``normalised`` its rows."""
        t, element = self.teams, CUDA_TYPES[dtype]
        numbers = (self.segments, self.fragments, t.row_teams, t.depth_warps, t.groups, t.ahead)
        arguments = ", ".join([element, *map(str, numbers), str(normalised).lower()])
        return f"{name}<{element}, StreamLinear<{arguments}>>"


def streams(tokens: int, in_features: int, dtype: str) -> bool:
    """Whether there is a shape for these sizes, and it is the best that there is."""
    if dtype not in STREAM_DTYPES or tokens > MAX_ROWS or not _whole_steps(in_features):
        return False
    return tokens <= _FRAGMENT_ROWS or tokens * in_features * _BYTES <= MAX_CACHED_BYTES


def check_streams(name: str, axes: Axes, *, max_rows: int, normalised: bool = False) -> None:
    """Refuse sizes that there is no shape for.

    Args:
        name: of the kernel.
        axes: its sizes.
        max_rows: that it is for, of one fragment at most.
        normalised: each block normalises the rows for itself.

    Raises:
        ValueError: too many rows, or in_features of no whole pieces or too long.
    """
    tokens, in_features = axes["tokens"], axes["in_features"]
    if tokens > max_rows:
        raise ValueError(
            f"{name}: tokens is {tokens}, expected at most {max_rows}; use the kernels that it "
            "stands for"
        )
    if not _whole_steps(in_features):
        raise ValueError(
            f"{name}: in_features is {in_features}, expected a multiple of {_LEAST_STEP}"
        )
    if not normalised:
        return
    most = min(
        _HELD_VECTORS * _VECTOR * stream_shape(tokens, in_features, 1).threads,
        MAX_NORM_BYTES // _BYTES // max(tokens, 1),
    )
    if in_features > most:
        raise ValueError(
            f"{name}: in_features is {in_features}, expected at most {most}, which a block can hold"
        )


def normalised_bytes(tokens: int, in_features: int) -> int:
    """Shared memory of the rows that a block normalises."""
    return tokens * in_features * _BYTES


def stream_benchmarks(
    inputs: Callable[[int, int, int], Make],
    matrices: Sequence[str],
    attrs: Mapping[str, float] | None = None,
    row_counts: Sequence[int] = (1, 4, 8),
) -> tuple[Case, ...]:
    """Cases of the sizes of an 8B, for kernels that take rows and a weight.

    Args:
        inputs: ``inputs(tokens, in_features, out_features)`` makes the arrays.
        matrices: their names.
        attrs: of the cases.
        row_counts: rows.
    """
    return tuple(
        Case(
            f"8b_{matrix}_{rows}_row{'s' * (rows > 1)}",
            inputs(rows, MATRICES[matrix][1], MATRICES[matrix][0] // (1 + (matrix == "gate_up"))),
            attrs or {},
        )
        for matrix in matrices
        for rows in row_counts
    )


def stream_shape(tokens: int, in_features: int, columns: int) -> StreamShape:
    """The launch for sizes that :func:`streams` holds for.

    Args:
        tokens: rows of x.
        in_features: of the weight.
        columns: rows of the weight.
    """
    segments = _segments(tokens, in_features)
    fragments = -(-tokens * segments // 16) or 1
    step = segments * _SEGMENT
    choices = _CHOICES[segments, fragments]
    if segments == 8 and min(in_features, columns) >= _LARGE:
        choices = (_LARGE_TEAMS, *choices)
    fitting = [t for t in choices if in_features % (step * t.depth_warps * t.ahead) == 0]
    if not fitting:
        steps = in_features // step
        fitting = [Teams(8, 1, 2, max(n for n in range(1, _MAX_AHEAD + 1) if steps % n == 0))]
    # Few columns are shared evenly only by few teams, of many warps each.
    teams = next(
        (
            t
            for t in fitting
            if _units(t, segments, columns) >= 2 * _most_blocks(t, fragments) * t.row_teams
        ),
        max(fitting, key=lambda t: t.depth_warps),
    )
    needed = -(-_units(teams, segments, columns) // teams.row_teams)
    return StreamShape(segments, fragments, teams, min(_most_blocks(teams, fragments), needed))


def _most_blocks(teams: Teams, fragments: int) -> int:
    """As many as a card has room for at once: two a multiprocessor, of the larger ones one."""
    large = fragments > 1 or teams.row_teams * teams.depth_warps > 8
    return MULTIPROCESSORS * (1 if large else 2)


def _units(teams: Teams, segments: int, columns: int) -> int:
    """What the rows of the weight are for teams that take so many at once."""
    return -(-columns // (teams.groups * 8 // segments))


def _segments(tokens: int, in_features: int) -> int:
    """The most pieces that rows of x leave room for in a fragment, and that make whole steps."""
    room = 8 if tokens <= 2 else 4 if tokens <= 4 else 2
    return next(n for n in (8, 4, 2) if n <= room and in_features % (n * _SEGMENT) == 0)


def _whole_steps(in_features: int) -> bool:
    return in_features > 0 and in_features % _LEAST_STEP == 0
