"""Import one module of a package whose ``__init__`` imports far more than is wanted."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def import_alone(name: str) -> ModuleType:
    """The module ``name``, without running the ``__init__`` of the packages above it.

    Whoever imports those packages later gets them whole, with this very module inside.

    Raises:
        ImportError: it is not there, or needs what those packages do.
    """
    if name in sys.modules:
        return sys.modules[name]
    stand_ins = []
    parts = name.split(".")
    try:
        for count in range(1, len(parts)):
            package = ".".join(parts[:count])
            if package in sys.modules:
                continue
            spec = importlib.util.find_spec(package)
            if spec is None or spec.submodule_search_locations is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            stand_in = ModuleType(package)
            stand_in.__path__ = list(spec.submodule_search_locations)
            stand_in.__spec__ = spec
            sys.modules[package] = stand_in
            stand_ins.append(package)
        return importlib.import_module(name)
    finally:
        for package in stand_ins:
            del sys.modules[package]
