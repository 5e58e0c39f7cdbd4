"""The extension's signatures: what pybind11 cannot convert it only says when it is called."""

from __future__ import annotations

from collections.abc import Iterator

from pelton import _C


def _signatures(owner: object, path: str) -> Iterator[tuple[str, str]]:
    for name, member in vars(owner).items():
        where = f"{path}.{name}"
        if isinstance(member, type) and member.__module__ == "pelton._C":
            yield from _signatures(member, where)
            continue
        function = member.fget if isinstance(member, property) else member
        yield where, getattr(function, "__doc__", None) or ""


def test_tensors_have_their_caster_everywhere() -> None:
    signatures = dict(_signatures(_C, "_C"))
    assert "torch.Tensor" in signatures["_C.Communicator.allgather"]
    without = {where: text for where, text in signatures.items() if "at::" in text}
    assert not without, "their file does not include torch/csrc/utils/pybind.h"
