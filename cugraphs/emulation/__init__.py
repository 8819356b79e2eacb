"""Run the unchanged text of a ``.cu`` file on the CPU, from a kernel's declaration.

``emulate.py`` runs a declaration's launches, ``build.py`` builds a ``.cu`` with g++, ``library.py``
loads and calls what was built. In ``cpp/``, what a kernel's text is compiled with:

* ``cuda_on_cpu.h``: CUDA C++ as g++ sees it; takes in ``device_math.h`` (functions, atomics),
  ``warp.h`` (shuffles, votes, reductions) and ``entry_points.h`` (how a kernel is called)
* ``ptx_on_cpu.h``, ``ptx_sm90_on_cpu.h``, ``meeting_on_cpu.h``, ``phase_stamps_on_cpu.h``: what the
  headers of these names in ``kernels/`` offer
* ``runtime.h``: what all of these ask of the runtime
* ``shared_memory.cpp``: the dynamic shared memory of a kernel's library
* ``crt/host_defines.h``, ``nv/target``: what CUDA's own headers ask for

and the runtime:

* ``launch.cpp``: what Python calls
* ``scheduler.{h,cpp}``: runs a launch; whose turn it is, what went wrong
* ``threads.h``, ``fiber.{h,cpp}``: the state of its threads; switching between their stacks
* ``mapping.h``: memory from the system, and what is said where there is none
* ``kernel_calls.cpp``: indices, barriers, collectives of a warp, atomics, asynchronous copies
* ``shared_memory.h``, ``shared_image.cpp``: the shared memory of a cluster's blocks, by turns
* ``compiler_hooks.cpp``: what g++'s sanitizers call in the checked build
* ``checks.{h,cpp}``: who last wrote and read each byte: out of bounds, uninitialised, unordered
* ``order.{h,cpp}``: what comes before what, by clocks
* ``meetings.{h,cpp}``: places and counts of blocks that meet in memory
* ``phases.{h,cpp}``: which phases of a launch its blocks note
"""

from cugraphs.emulation.build import BuildError
from cugraphs.emulation.emulate import emulate
from cugraphs.emulation.library import EmulationError

__all__ = ["BuildError", "EmulationError", "emulate"]
