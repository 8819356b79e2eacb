"""Bugs to plant in the kernels, one at a time: the mistakes that people really make.

`scripts/mutate_kernels.py` plants them and says which of them the declarations' cases and the
identities of `emulated_identities` turn red. What is planted in ``kernels/<stem>.cu``, ``.cuh``
and ``.py`` stands in ``<stem>.py`` of this folder, which is found by its name; there, ``BUGS`` has
for each kernel that is proven and each file the bugs as (what is wrong then, text, text with the
bug). Knows texts only, and runs nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One bug: ``old``, which stands once in ``kernels/<file>``, becomes ``new``.

    Args:
        kernel: the name of the kernel that is proven with it.
        file: in ``kernels/``.
        bug: what is wrong then, in a few words.
        old: the text as it is.
        new: the text with the bug.
    """

    kernel: str
    file: str
    bug: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text of the file with the bug.

        Raises:
            ValueError: ``old`` is not there exactly once.
        """
        found = text.count(self.old)
        if found != 1:
            raise ValueError(
                f"mutation {self.kernel} ({self.bug}): {self.old!r} stands {found} times in "
                f"kernels/{self.file}, expected once; adapt "
                f"tests/mutations/{stem_of(self.file)}.py to the kernel"
            )
        return text.replace(self.old, self.new)


def stem_of(file: str) -> str:
    """The name of the module here that has the bugs of ``kernels/<file>``."""
    return file.partition(".")[0]


def _listed() -> Iterator[Mutation]:
    for module in pkgutil.iter_modules(__path__):
        bugs = importlib.import_module(f"{__name__}.{module.name}").BUGS
        for (kernel, file), texts in bugs.items():
            if stem_of(file) != module.name:
                raise ValueError(
                    f"tests/mutations/{module.name}.py: a bug's file is kernels/{file}, expected "
                    f"one named {module.name}; move it to {stem_of(file)}.py"
                )
            for bug, old, new in texts:
                yield Mutation(kernel, file, bug, old, new)


MUTATIONS: tuple[Mutation, ...] = tuple(_listed())
