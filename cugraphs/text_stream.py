"""The text of one request, as an iterator that runs the engine while it waits."""

from __future__ import annotations

from collections.abc import Iterator

from cugraphs.engine import Engine
from cugraphs.outputs import RequestOutput
from cugraphs.request import Request


class TextStream(Iterator[str]):
    """The text of one request, piece by piece, as it becomes final."""

    def __init__(self, engine: Engine, request: Request) -> None:
        """Follow a request that was just added."""
        self._engine = engine
        self._request = request
        self._num_given = 0
        self._has_failed = False  # and said why

    def __next__(self) -> str:
        """The next piece; runs steps until there is one, and those are for all requests.

        Raises:
            FloatingPointError, RuntimeError: the request failed, as of ``LLM.generate``.
        """
        pieces = self._request.completions[0].pieces
        try:
            while self._num_given == len(pieces):
                if self._request.finished:
                    if self._request.error is not None and not self._has_failed:
                        self._has_failed = True
                        raise self._request.failure("LLM.stream")
                    raise StopIteration
                self._engine.step()
        except BaseException:  # an error or an interrupt leaves no request behind
            self.close()
            raise
        new = pieces[self._num_given :]
        self._num_given += len(new)
        return "".join(new)

    @property
    def output(self) -> RequestOutput:
        """All there is so far, whether it was taken from the stream or not."""
        return self._request.output()

    def close(self) -> None:
        """Stop the request; what it has so far stays in ``output``."""
        self._engine.abort(self._request)
        self._num_given = len(self._request.completions[0].pieces)

    def __del__(self) -> None:
        """Stop the request, before the next step, when nobody listens any more."""
        self._engine.abort_soon(self._request)
