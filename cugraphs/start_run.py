"""One start, in a process of its own: from the interpreter to the first token, as a user has it.

``python -m cugraphs.start_run '{"model": "/models/llama"}'`` loads the model, generates one token
and prints when each part of that began and ended, by the clock that all processes of a machine
share. Further keys are arguments of ``LLM``.
"""

from __future__ import annotations

import json
import platform
import sys
import time

_BEGIN_S = time.perf_counter()


def main() -> None:
    """Run, and print one line of JSON."""
    from cugraphs.start_times import SPANS, record, span

    record("Python, first imports", _BEGIN_S)
    options = json.loads(sys.argv[1])
    with span("import cugraphs"):
        from cugraphs.llm import LLM
        from cugraphs.sampling_params import SamplingParams
    with span("LLM"):
        llm = LLM(**options)
    with span("first token"):
        output = llm.generate("Hello", SamplingParams(temperature=0, max_tokens=1))[0]

    from cugraphs.bench_machine import describe_machine
    from cugraphs.cuda_device import CudaDevice

    machine = {"python": platform.python_version()}
    if isinstance(llm.device, CudaDevice):
        machine = describe_machine(llm.device)
    print(
        json.dumps(
            {
                "begin_s": _BEGIN_S,
                "token_ids": output.outputs[0].token_ids,
                "graphs": llm.runner.counts.captures,
                "machine": machine,
                "spans": [[s.name, s.thread, s.begin_s, s.end_s] for s in SPANS],
            }
        )
    )


if __name__ == "__main__":
    main()
