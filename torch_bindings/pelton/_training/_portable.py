"""Groups as modules hold them when they are copied, or pickled with a model."""

from __future__ import annotations

from typing import Any


class Portable:
    """A group, of which copies in the same process are the group itself and pickles none.

    Threads: a value. Owns: nothing.
    """

    def __init__(self, group: Any = None) -> None:
        """Args:
        group: one of torch's or of ours; None for all ranks.
        """
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> Portable:
        return self

    def __reduce__(self) -> tuple[type[Portable], tuple[()]]:
        return Portable, ()
