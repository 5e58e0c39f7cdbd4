"""What users call the operations that the runtime's errors know by numbers."""

from __future__ import annotations

import re

from pelton import _C
from pelton.errors import DeadlineExceeded, InvalidArgument, PeerLost, PeltonError

PARTING = "the ranks' parting, of pelton.bluefog"  # the name of the barrier before a rank leaves
_PARTING_NUMBER = _C.number_of_name(PARTING)
_MOST_TEXTS = 65536
_BUCKETS = re.compile(
    r"(?:the operation is (?P<my_kind>\w+) on rank \d+ and (?P<their_kind>\w+) on rank \d+; )?"
    r"bucket is (?P<mine>-?\d+) on rank (?P<me>\d+) and (?P<theirs>-?\d+) on rank (?P<them>\d+)"
)
_NEIGHBORS = re.compile(r"\w*neighbor_\w+(?: (?P<name>'.*?'))?: ")
_ABORTED = re.compile(r": rank (?P<rank>\d+) aborted: .* in \w*neighbor_\w+(?: (?P<name>'.*'))?$")


class Names:
    """The names that operations were given. Threads: as Python's dicts. Owns: their texts."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}  # by the numbers that the runtime knows them by

    def note(self, name: str) -> None:
        """Remembers one for errors.

        Args:
          name: of an operation that begins.
        """
        if len(self._texts) >= _MOST_TEXTS:
            self._texts.clear()
        self._texts[_C.number_of_name(name)] = name

    def explain(self, error: PeltonError) -> PeltonError:
        """The same error with operations' names in place of the runtime's numbers of them, where this rank knows them;
        PeerLost where the ranks differ because one of them has left. Where neighbors have not come in time, it says by
        which names this rank and the one that has waited match.

        Args:
          error: the runtime's; of another kind than InvalidArgument and DeadlineExceeded it stays as it is.
        """
        if isinstance(error, DeadlineExceeded):
            return _with_both_ends(error)
        if not isinstance(error, InvalidArgument):
            return error
        parting = self.parting_in(error)
        text = _BUCKETS.sub(parting or self._both_names, str(error))
        for number, name in re.findall(r"( of bucket (\d+))", text):
            text = text.replace(number, f" '{self._texts.get(int(name), name)}'")
        return InvalidArgument(text) if parting is None else PeerLost(text)

    def parting_in(self, error: InvalidArgument) -> str | None:
        """Who has left, and whom at which operation; None where the ranks differ for another reason.

        Args:
          error: the runtime's.
        """
        found = _BUCKETS.search(str(error))
        if found is None or _PARTING_NUMBER not in (int(found["mine"]), int(found["theirs"])):
            return None
        if int(found["mine"]) == _PARTING_NUMBER:
            gone, left, kind, number = found["me"], found["them"], found["their_kind"], int(found["theirs"])
        else:
            gone, left, kind, number = found["them"], found["me"], found["my_kind"], int(found["mine"])
        name = "" if number < 0 else f" {self._name_of(number)}"
        return (
            f"rank {gone} has left: its script ended or called shutdown() while rank {left} "
            f"is still in {kind or 'barrier'}{name} (did rank {gone} fail, or have fewer batches?)"
        )

    def _both_names(self, found: re.Match[str]) -> str:
        differ = re.match(r"the operation is .*; ", found[0])
        return (
            f"{'' if differ is None else differ[0]}"
            f"the name is {self._name_of(int(found['mine']))} on rank {found['me']} "
            f"and {self._name_of(int(found['theirs']))} on rank {found['them']}; "
            "all ranks must call collectives in the same order"
        )

    def _name_of(self, number: int) -> str:
        if number < 0:
            return "none"
        return f"'{self._texts[number]}'" if number in self._texts else "one that this rank has not used"


def _with_both_ends(error: DeadlineExceeded) -> DeadlineExceeded:
    """The other end's name is known where that one's time was over first."""
    text = str(error)
    mine, theirs = _NEIGHBORS.match(text), _ABORTED.search(text)
    if mine is None or (theirs is not None and theirs["name"] == mine["name"]):
        return error
    here = f"its neighbors match this call by its name, which is {mine['name'] or 'none'} here"
    if theirs is None:
        return DeadlineExceeded(f"{text}; {here}: have they called it by another one?")
    return DeadlineExceeded(f"{text}; {here} and {theirs['name'] or 'none'} on rank {theirs['rank']}")


NAMES = Names()
