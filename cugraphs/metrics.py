"""Prometheus export: an engine's counters as a collector, read whenever they are scraped.

Needs the extra ``metrics`` (prometheus-client). Times of requests are histograms, which are told of
each request that ends; everything else is what ``llm.stats()`` says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from cugraphs.statistics import EngineStats, RequestTimes

if TYPE_CHECKING:
    from prometheus_client import Histogram
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import CollectorRegistry

# A token of a small model takes a third of a millisecond, a long answer minutes.
_BUCKETS_S = tuple(base * 10.0**exponent for exponent in range(-4, 3) for base in (1.0, 2.5, 5.0))
_COUNTERS = {
    "requests_finished": "Requests that have ended.",
    "requests_failed": "Requests that have ended with an error.",
    "steps": "Steps that ran.",
    "prompt_tokens": "Prompt tokens computed.",
    "generated_tokens": "Tokens sampled.",
    "surplus_tokens": "Tokens sampled behind a stop string, for nobody.",
    "cached_tokens": "Prompt tokens found in the cache.",
    "forks": "Samples that took over the blocks of another sample of their prompt.",
    "forked_tokens": "Prompt tokens that those hold.",
    "copied_blocks": "KV blocks copied for them.",
    "preemptions": "Sequences that gave their blocks back.",
    "captures": "CUDA graphs captured.",
    "padding_rows": "Rows computed for nobody.",
    "off_ladder_steps": "Batches above the largest captured size.",
}
_GAUGES = {
    "requests_waiting": "Sequences that are not admitted.",
    "requests_running": "Sequences that are.",
    "kv_blocks": "KV blocks that sequences can own.",
    "kv_blocks_used": "KV blocks owned now.",
    "kv_blocks_cached": "KV blocks of nobody that hold a prefix.",
}
_TIMES = {
    "queue_s": ("queue_seconds", "From arrival until a step first ran some of the request."),
    "time_to_first_token_s": ("time_to_first_token_seconds", "From arrival to the first token."),
    "time_per_output_token_s": ("time_per_output_token_seconds", "Mean over the later tokens."),
    "total_s": ("request_seconds", "From arrival to the end."),
}


class Measured(Protocol):
    """What is asked of an engine."""

    on_finished: list[Callable[[RequestTimes], None]]

    def stats(self) -> EngineStats:
        """Counters since the start."""


class EngineMetrics:
    """An engine's metrics, all named ``cugraphs_…``. They do not keep the engine.

    >>> EngineMetrics(llm.engine)  # then serve prometheus_client's registry
    """

    def __init__(self, engine: Measured, registry: CollectorRegistry | None = None) -> None:
        """Register, in the place of an engine that is gone.

        Args:
            engine: whose they are; its ``on_finished`` gets a callback.
            registry: of prometheus-client; None is its own.

        Raises:
            RuntimeError: prometheus-client is not installed.
            ValueError: the registry has metrics of these names, of an engine that is still there.
        """
        try:
            import prometheus_client
        except ImportError:
            raise RuntimeError(
                "metrics: prometheus-client is not installed; pip install 'cugraphs[metrics]'"
            ) from None
        self._engine = weakref.ref(engine)
        registry = registry or prometheus_client.REGISTRY
        before = _of_registry.get(registry)
        if before is not None and before._engine() is None:
            # Not when that engine went: a finalizer may run while the registry holds its lock.
            for collector in (*before._times.values(), before):
                registry.unregister(collector)
        self._times: dict[str, Histogram] = {
            field: prometheus_client.Histogram(
                f"cugraphs_{name}", text, buckets=_BUCKETS_S, registry=registry
            )
            for field, (name, text) in _TIMES.items()
        }
        registry.register(self)
        _of_registry[registry] = self
        engine.on_finished.append(self._observe)

    def collect(self) -> Iterator[Metric]:
        """Every counter and gauge as it is now."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        engine = self._engine()
        if engine is None:
            return
        stats = engine.stats()
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"cugraphs_{name}", text, value=getattr(stats, name))
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"cugraphs_{name}", text, value=getattr(stats, name))
        replays, loops = (
            {str(rung): float(count) for rung, count in counts.items()}
            for counts in (stats.replays, stats.loops)
        )
        by_label: tuple[tuple[str, str, str, dict[str, float]], ...] = (
            ("replays", "rung", "Replayed decode steps.", replays),
            ("loops", "rung", "Launches of a captured loop over decode steps.", loops),
            ("eager_steps", "reason", "Steps that ran eagerly.", dict(stats.eager_steps)),
            ("host_seconds", "phase", "Time of the step's thread.", dict(stats.host_seconds)),
        )
        for name, label, text, values in by_label:
            family = CounterMetricFamily(f"cugraphs_{name}", text, labels=[label])
            for key, value in values.items():
                family.add_metric([key], value)
            yield family

    def _observe(self, times: RequestTimes) -> None:
        for field, histogram in self._times.items():
            seconds = getattr(times, field)
            if seconds is not None:
                histogram.observe(seconds)


_of_registry: WeakKeyDictionary[CollectorRegistry, EngineMetrics] = WeakKeyDictionary()
"""The last that were registered in each registry."""
