"""Why a wrapping keeps its model's ranks together no longer."""

from __future__ import annotations

_WRAP_AGAIN = "wrap it again on all ranks, after init_process_group() if the process group was destroyed"


class Ending:
    """What a wrapping that has ended says to whoever still holds it. Threads: the trainer's. Owns: texts, and the
    ending of the wrapping that has taken its place, but not that wrapping.
    """

    def __init__(self) -> None:
        self._words = "its registration failed", _WRAP_AGAIN
        self._has_ended = False
        self._successor: Ending | None = None

    def end(self, reason: str) -> None:
        self._words, self._has_ended = (reason, _WRAP_AGAIN), True

    def make_way(self, successor: Ending) -> None:
        """Another wrapping keeps the model's ranks together now."""
        self._words = "it was wrapped again", "call pelton.wrapping_of(model) for the object behind it now"
        self._has_ended, self._successor = True, successor

    def words(self) -> str:
        """The reason and what to do; where the last wrapping has ended, too, those of that one."""
        last = self
        while last._successor is not None:
            last = last._successor
        reason, remedy = last._words if last._has_ended else self._words
        return f"{reason}; {remedy}"
