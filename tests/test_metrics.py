"""What Prometheus scrapes is what ``llm.stats()`` says."""

import gc
import sys
import weakref

import pytest
from tiny_model import write_tiny_model

from cugraphs import LLM, SamplingParams

OPTIONS = {"device": "cpu", "max_num_seqs": 4, "max_model_len": 64}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(write_tiny_model(tmp_path_factory.mktemp("metrics") / "tiny"), **OPTIONS)


def test_scraped_values_are_the_engines(llm):
    prometheus_client = pytest.importorskip("prometheus_client", reason="needs extra metrics")
    registry = prometheus_client.CollectorRegistry()
    llm.export_metrics(registry)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    llm.generate(["The quick", "brown fox"], params)
    stats = llm.stats()

    def value(name, **labels):
        return registry.get_sample_value(f"cugraphs_{name}", labels)

    assert value("generated_tokens_total") == stats.generated_tokens == 10
    assert value("requests_finished_total") == stats.requests_finished == 2
    assert value("kv_blocks") == stats.kv_blocks and value("kv_blocks_used") == 0
    for reason, steps in stats.eager_steps.items():
        assert value("eager_steps_total", reason=reason) == steps
    assert value("host_seconds_total", phase="wait") == stats.host_seconds["wait"]
    assert value("time_to_first_token_seconds_count") == 2
    assert value("time_per_output_token_seconds_sum") > 0
    assert "cugraphs_steps_total" in prometheus_client.generate_latest(registry).decode()
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        llm.export_metrics(registry)


def test_a_registry_keeps_no_engine_and_takes_the_next_one(tmp_path):
    prometheus_client = pytest.importorskip("prometheus_client", reason="needs extra metrics")
    registry = prometheus_client.CollectorRegistry()
    folder = write_tiny_model(tmp_path / "tiny")
    for count in (1, 2):
        llm = LLM(folder, **OPTIONS)
        llm.export_metrics(registry)
        llm.generate(["a"] * count, SamplingParams(max_tokens=1))
        assert registry.get_sample_value("cugraphs_requests_finished_total") == count
        assert registry.get_sample_value("cugraphs_request_seconds_count") == count
        gone = weakref.ref(llm.runner)
        del llm
        gc.collect()
        assert gone() is None
        assert registry.get_sample_value("cugraphs_requests_finished_total") is None


def test_without_the_extra_it_says_what_to_install(llm, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(RuntimeError, match=r"pip install 'cugraphs\[metrics\]'"):
        llm.export_metrics()
