"""Times what cuBLASLt proposes for a matrix product on the GPU, and says what is fastest.

The library proposes up to eight algorithms, and others where it may use less workspace; these can
have hundreds of tiles that it does not propose, some of them faster. Each is timed as a captured
chain of products over cold weights: as in a decode step, where a weight was last read a step ago
and the activations just now. Knows no model and no file.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cugraphs.arena import POISON
from cugraphs.cublaslt import MatrixPlan, MatrixShape
from cugraphs.cuda_device import CudaDevice
from cugraphs.cuda_graph import CudaGraph
from cugraphs.kernel import DTYPES, Array, MatrixProduct
from cugraphs.product_tilings import promising
from cugraphs.tuning_table import ROW_CLASSES, Choice, Product

CANDIDATES = 16  # that are asked for, at each limit of the workspace; cuBLASLt 13.1 gives 8
WORKSPACE_LIMITS_BYTES = (MatrixProduct.workspace_bytes, 4 << 20, 0)
TILINGS = 36  # that are tried beside those, once each
BEST_TILINGS = 6  # of these, tried in all CLUSTERS
CLUSTERS = ((1, 1), (2, 1), (1, 2), (4, 1), (1, 4), (2, 2), (2, 4), (4, 2))
FINALISTS = 4  # that are timed again, in turn with the first heuristic
MIN_GAIN = 0.01  # less than this is no reason to leave the library's own choice
ROUNDS = 9  # replays of each finalist
# Up to here steps run at the row classes themselves; above, prompts have any length in between,
# so that a choice must also be good in the middle of its class.
RUNGS_UP_TO = 256
_SCREENING_ROUNDS = 2
_FIRST_SCREENING_US = 300.0  # as _CHAIN_US, where many are tried once
# Some split-K algorithms clear their sums by a node of its own, for which launching a graph takes
# so much longer on the host.
_MEMSET_US = 1.4
_CHAIN_US = 1000.0  # how long a chain should take
# Before a chain: products in a row draw more power than a card may, and its clock then swings by
# more than algorithms differ. In a step they draw less, beside attention and what waits for memory.
_REST_S = 0.004
_MAX_LAUNCHES = 1000
_COLD_CACHES = 3  # weights that are read before one comes again, in sizes of the L2 cache
_BLOCK_ELEMENTS = (1 << 22) - 1  # random values, which repeat, out of step with rows
_CHECKED_ROWS = 64  # of either end of a result
# Far above the rounding of any dtype here, and far below what a wrong product differs by.
_DISAGREEMENT = 2.0**-6


Samples = dict[int, list[float]]  # times in us by number of rows


def fastest(first: Samples, others: Mapping[bytes, Samples]) -> bytes | None:
    """The algorithm with the smallest time relative to the first heuristic's; None for that one.

    The mean over the numbers of rows must be faster by more than the noise, which is the spread of
    the first's own times, and by more than ``MIN_GAIN``; and none of them may be slower.
    """
    medians = {rows: statistics.median(values) for rows, values in first.items()}
    best, best_score = None, 1 - max(MIN_GAIN, *map(_spread, first.values()))
    for algorithm, samples in others.items():
        ratios = [statistics.median(values) / medians[rows] for rows, values in samples.items()]
        score = statistics.mean(ratios)
        if score < best_score and max(ratios) <= 1:
            best, best_score = algorithm, score
    return best


def agree(found: Array, expected: Array) -> bool:
    """Whether two results of one product differ by no more than different orders of its sum do."""
    a, b = found.astype(np.float32), expected.astype(np.float32)
    scale = np.maximum(np.abs(b), np.sqrt(np.mean(np.square(b))))
    return bool(np.all(np.abs(a - b) <= _DISAGREEMENT * scale))


class ProductTimer:
    """Times one product at any number of rows; holds its operands."""

    def __init__(self, device: CudaDevice, product: Product, max_rows: int) -> None:
        """Allocate and fill the operands.

        Args:
            device: whose library and stream are used.
            product: its dtype is "tf32" where the device allows TF32.
            max_rows: the most rows that will be timed.

        Raises:
            MemoryError: they do not fit.
        """
        self._device, self._product = device, product
        self._dtype = "float32" if product.dtype == "tf32" else product.dtype
        itemsize = DTYPES[self._dtype].itemsize
        attributes = _cupy().cuda.Device().attributes
        self._l2_bytes = int(attributes["L2CacheSize"])
        self._multiprocessors = int(attributes["MultiProcessorCount"])
        elements = product.out_features * product.in_features
        self._weight_bytes = -(-elements * itemsize // 256) * 256
        self._num_weights = -(-_COLD_CACHES * self._l2_bytes // self._weight_bytes) + 1
        self._weights = device.allocate_bytes(self._num_weights * self._weight_bytes)
        self._x = device.allocate_bytes(max_rows * product.in_features * itemsize)
        self._out = device.allocate_bytes(max_rows * product.out_features * itemsize)
        self._bias = device.allocate_bytes(product.out_features * itemsize)
        self._workspace = device.allocate_bytes(MatrixProduct.workspace_bytes)
        block = np.random.default_rng(0).standard_normal(_BLOCK_ELEMENTS, np.float32)
        host = block.astype(DTYPES[self._dtype]).view(np.uint8)
        for array in (self._weights, self._x, self._bias):  # not zeros, which would run faster
            _fill(array, host, device.stream)
        device.stream.synchronize()

    def tune(self, rows: int) -> Choice:
        """The fastest algorithm for the row class ``rows``.

        The library's first heuristic stays unless another is faster by more than the noise: the
        spread of the first's own times, or ``MIN_GAIN``.

        Raises:
            RuntimeError: the library has no algorithm for it.
        """
        probes = probe_rows(rows)
        first = {probe: self._first(probe) for probe in probes}
        algorithms: dict[bytes, None] = {}  # in the library's order, each once
        for limit_bytes in WORKSPACE_LIMITS_BYTES:
            for plan in self._heuristics(rows, CANDIDATES, limit_bytes):
                algorithms[plan.algorithm.tobytes()] = None
        algorithms |= dict.fromkeys(self._tiled(rows, algorithms))
        if len(probes) == 1:
            algorithms.pop(first[rows].algorithm.tobytes(), None)  # it is timed as the first
        first_chains = {probe: self._chain(probe, plan) for probe, plan in first.items()}
        candidates = []
        for algorithm in algorithms:
            chains = self._chains(algorithm, probes)
            if chains is not None:
                candidates.append(_Candidate(algorithm, chains))
        first_us = {probe: chain.us(_SCREENING_ROUNDS) for probe, chain in first_chains.items()}
        for candidate in candidates:
            candidate.score = candidate.measure(_SCREENING_ROUNDS, first_us)
        ranked = sorted(candidates, key=lambda c: c.score)[:FINALISTS]
        expected = {probe: self._result(probe, plan) for probe, plan in first.items()}
        finalists = [c for c in ranked if self._is_right(c.algorithm, expected)]
        samples: Samples = {probe: [] for probe in probes}
        times: dict[bytes, Samples] = {
            c.algorithm: {probe: [] for probe in probes} for c in finalists
        }
        for _ in range(ROUNDS):  # in turn, so that a clock that drifts meets all alike
            for probe in probes:
                samples[probe].append(first_chains[probe].us(1))
                for c in finalists:
                    times[c.algorithm][probe].append(c.chains[probe].us(1))
        us = statistics.median(samples[rows])
        chosen = fastest(samples, times)
        if chosen is None:
            return Choice(None, first[rows].workspace_bytes, us, us)
        restored = self._restore(rows, chosen)
        assert restored is not None, "an algorithm that ran can be restored"
        best_us = statistics.median(times[chosen][rows])
        return Choice(chosen, restored.workspace_bytes, best_us, us)

    def _tiled(self, rows: int, proposed: Collection[bytes]) -> list[bytes]:
        """The fastest of the algorithms that those proposed become with other tiles.

        First the tilings that should waste least, then the best of these with all clusters of
        blocks; each with whatever else the proposed algorithms differ by.
        """
        lt, shape = self._device.cublaslt, self._shape(rows)
        kinds: dict[tuple[int, ...], MatrixPlan] = {}
        for algorithm in proposed:
            plan = self._restore(rows, algorithm)
            if plan is not None:
                kinds.setdefault(lt.kind(plan), plan)
        us: dict[bytes, float] = {}
        tried: dict[bytes, tuple[MatrixPlan, int, int]] = {}

        def try_tiling(plan: MatrixPlan, tile: int, cluster: tuple[int, int], splits: int) -> None:
            found = lt.varied(
                plan, shape, self._bias_ptr, tile=tile, cluster=cluster, splits=splits
            )
            if found is None or found.algorithm.tobytes() in us:
                return
            try:
                chain = self._chain(rows, found, _FIRST_SCREENING_US)
            except Exception:  # of the bindings: it was checked, and is refused all the same
                return
            us[found.algorithm.tobytes()] = chain.us(1)
            tried[found.algorithm.tobytes()] = (plan, tile, splits)

        for plan in kinds.values():
            tiles = lt.tiles(plan)
            for tiling in promising(
                tiles, rows, shape.out_features, self._multiprocessors, count=TILINGS
            ):
                tile = tiles[tiling.features, tiling.rows]
                try_tiling(plan, tile, CLUSTERS[0], tiling.splits)
        for algorithm in sorted(us, key=us.__getitem__)[:BEST_TILINGS]:
            plan, tile, splits = tried[algorithm]
            for cluster in CLUSTERS[1:]:
                try_tiling(plan, tile, cluster, splits)
        new = [algorithm for algorithm in us if algorithm not in proposed]
        return sorted(new, key=us.__getitem__)[:BEST_TILINGS]

    def _shape(self, rows: int) -> MatrixShape:
        p = self._product
        return MatrixShape(rows, p.out_features, p.in_features, self._dtype, p.has_bias)

    @property
    def _bias_ptr(self) -> int:
        return int(self._bias.data.ptr) if self._product.has_bias else 0

    def _heuristics(
        self, rows: int, count: int, limit_bytes: int = MatrixProduct.workspace_bytes
    ) -> list[MatrixPlan]:
        return self._device.cublaslt.heuristics(
            self._shape(rows), self._bias_ptr, count=count, workspace_bytes=limit_bytes
        )

    def _first(self, rows: int) -> MatrixPlan:
        plans = self._heuristics(rows, 1)
        if not plans:
            raise RuntimeError(f"tune: cuBLASLt has no algorithm for {self._shape(rows)}")
        return plans[0]

    def _restore(self, rows: int, algorithm: bytes) -> MatrixPlan | None:
        return self._device.cublaslt.restore(self._shape(rows), self._bias_ptr, algorithm)

    def _chains(self, algorithm: bytes, probes: Sequence[int]) -> dict[int, _Chain] | None:
        """A chain for each number of rows; None if the algorithm cannot run one of them."""
        chains = {}
        for probe in probes:
            plan = self._restore(probe, algorithm)
            if plan is None:
                return None
            try:
                chains[probe] = self._chain(probe, plan)
            except Exception:  # of the bindings: it was checked, and is refused all the same
                return None
        return chains

    def _chain(self, rows: int, plan: MatrixPlan, us: float = _CHAIN_US) -> _Chain:
        launches = self._num_launches(rows, us)
        return _Chain(self._device.stream, partial(self._launch, plan), launches)

    def _launch(self, plan: MatrixPlan, index: int) -> None:
        """Queue one product with the weight of that number, or the one it begins again at."""
        out, x = int(self._out.data.ptr), int(self._x.data.ptr)
        first_weight, workspace = int(self._weights.data.ptr), int(self._workspace.data.ptr)
        weight = first_weight + index % self._num_weights * self._weight_bytes
        stream = int(self._device.stream.ptr)
        self._device.cublaslt.launch(plan, out, x, weight, workspace, stream)

    def _is_right(self, algorithm: bytes, expected: Mapping[int, Array]) -> bool:
        """Whether it computes what the first heuristic does, and twice the same bits."""
        for rows, result in expected.items():
            plan = self._restore(rows, algorithm)
            assert plan is not None, "an algorithm that ran can be restored"
            found, again = (self._result(rows, plan) for _ in range(2))
            if found.tobytes() != again.tobytes() or not agree(found, result):
                return False
        return True

    def _result(self, rows: int, plan: MatrixPlan) -> Array:
        """The first and the last rows of a product whose memory held NaN before."""
        device, dtype = self._device, DTYPES[self._dtype]
        row_bytes = self._product.out_features * dtype.itemsize
        out = self._out[: rows * row_bytes]
        out.data.memset_async(POISON, out.nbytes, device.stream)
        self._launch(plan, 0)
        count = min(rows, _CHECKED_ROWS) * row_bytes
        ends = [device.read(out[:count]), device.read(out[out.nbytes - count :])]
        return np.concatenate(ends).view(dtype).reshape(-1, self._product.out_features)

    def _num_launches(self, rows: int, chain_us: float) -> int:
        """Enough for a time to be exact and every weight to be cold, from what none can beat."""
        flops = 2 * rows * self._product.out_features * self._product.in_features
        least_us = max(self._weight_bytes / 4e6, flops / 7e8, 4.0)
        cold = -(-_COLD_CACHES * self._l2_bytes // self._weight_bytes)
        return min(max(round(chain_us / least_us), cold, 3), _MAX_LAUNCHES)


class _Chain:
    """Launches captured into one graph, to be timed again and again."""

    def __init__(self, stream: Any, launch: Callable[[int], None], num_launches: int) -> None:  # noqa: ANN401
        launch(0)  # loads the kernel; a refusal shows here, outside the capture
        stream.synchronize()
        self._stream, self._num_launches = stream, num_launches
        with stream:
            stream.begin_capture(_cupy().cuda.runtime.streamCaptureModeThreadLocal)
            try:
                for index in range(num_launches):
                    launch(index)
            finally:
                self._graph = stream.end_capture()
        self._graph.upload(stream)
        memsets = CudaGraph(self._graph, stream).node_kinds()["memset"]
        self._host_us = _MEMSET_US * memsets / num_launches
        self._replay()  # warms up

    def us(self, rounds: int) -> float:
        """The median time of one launch, with what clearing adds to a graph's launch."""
        return statistics.median(self._replay() for _ in range(rounds)) + self._host_us

    def _replay(self) -> float:
        cupy, stream = _cupy(), self._stream
        time.sleep(_REST_S)
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        self._graph.launch(stream)
        end.record(stream)
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) * 1e3 / self._num_launches


@dataclass
class _Candidate:
    """An algorithm, its chain for each number of rows, and its time relative to the first's."""

    algorithm: bytes
    chains: dict[int, _Chain]
    score: float = 1.0

    def measure(self, rounds: int, first_us: dict[int, float]) -> float:
        return statistics.mean(
            chain.us(rounds) / first_us[probe] for probe, chain in self.chains.items()
        )


def probe_rows(rows: int) -> tuple[int, ...]:
    """The numbers of rows at which a row class is timed; its largest is first."""
    if rows <= RUNGS_UP_TO:
        return (rows,)
    below = ROW_CLASSES[ROW_CLASSES.index(rows) - 1]
    return (rows, (below + rows) // 2)


def _spread(values: Sequence[float]) -> float:
    """The middle half of the values, relative to their median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def _fill(array: Any, host: np.ndarray[Any, Any], stream: Any) -> None:  # noqa: ANN401
    """Fill device bytes with ``host``, again and again."""
    filled = min(array.nbytes, host.nbytes)
    array[:filled].set(host[:filled], stream=stream)
    while filled < array.nbytes:
        count = min(filled, array.nbytes - filled)
        array[filled : filled + count].data.copy_from_device_async(array.data, count, stream)
        filled += count


def _cupy() -> Any:  # noqa: ANN401 - a module without types
    import cupy

    return cupy
