"""Ctrl-C while a command imports its modules: never lost, and never in the midst of an import."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from cugraphs.cli import main, options
from cugraphs.cli.held_interrupt import held_interrupt

# Interrupts its own process as a module is looked for, for which Python holds that module's lock.
RUN = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
            sys.stderr.write("interrupted here\\n")

sys.meta_path.insert(0, Interrupts())
from cugraphs.cli import main
sys.exit(main(["generate", "demo", "Once", "--device", "cpu"]))
"""


@pytest.mark.parametrize(
    "module", ["argparse", "cugraphs.cli.parser", "numpy", "cugraphs.llm", "cugraphs.cli.profile"]
)
def test_an_interrupt_in_the_midst_of_an_import_is_met_behind_it(module):
    command = [sys.executable, "-c", RUN, module]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 130 and ran.stdout == ""
    assert ran.stderr == "interrupted here\ncugraphs: interrupted\n"


def test_an_interrupt_while_cupy_is_imported_is_met_behind_it(monkeypatch, capsys):
    done = []

    def wake_driver():
        os.kill(os.getpid(), signal.SIGINT)
        done.append(True)

    monkeypatch.setattr(options, "wake_driver", wake_driver)
    assert main(["generate", "demo", "Once", "--device", "cpu"]) == 0 and not done
    assert main(["generate", "demo", "Once"]) == 130 and done
    assert capsys.readouterr().err.endswith("cugraphs: interrupted\n")


def test_it_is_raised_at_the_end_and_the_ordinary_handler_is_back():
    done = False
    with pytest.raises(KeyboardInterrupt), held_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        done = True
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with held_interrupt():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_goes_before_an_error_of_the_import():
    with pytest.raises(KeyboardInterrupt) as caught, held_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        raise ImportError("half a module")
    assert isinstance(caught.value.__context__, ImportError)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None])
def test_a_programs_own_handler_stays(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        with held_interrupt():
            assert signal.getsignal(signal.SIGINT) is handler
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_sets_no_handler():
    seen = []

    def run():
        with held_interrupt():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
