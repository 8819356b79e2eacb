"""Run the unchanged text of a ``.cu`` file on the CPU, from a kernel's declaration."""

from cugraphs.emulation.build import BuildError
from cugraphs.emulation.emulate import emulate
from cugraphs.emulation.library import EmulationError

__all__ = ["BuildError", "EmulationError", "emulate"]
