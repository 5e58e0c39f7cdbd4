"""The safe encoding of values: what is malformed is an InvalidArgument, whatever it is."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from pelton._training._encoding import decode, encode
from pelton.errors import InvalidArgument

MALFORMED: list[Any] = [
    1.5,
    {},
    {"float": "1", "tuple": []},
    {"float": "many"},
    {"float": 1},
    {"tuple": 3},
    {"dict": [[1]]},
    {"dict": [[[1], 2]]},  # a list is no key
    {"dict": {"a": 1}},
    {"complex": ["0x1p+0"]},
    {"bytes": "not base 64!"},
    {"set": [[1]]},
    {"dtype": "torch.Tensor"},
    {"tensor": ["torch.float32"]},
    {"tensor": ["os.system", [1]]},
    {"tensor": ["torch.float32", [-1]]},
    {"tensor": ["torch.float32", [1 << 30, 1 << 30]]},
    {"tensor": ["torch.float32", ["x"]]},
    {"tensor": ["torch.float32", [1 << 40]]},  # more than there is memory
    {"object": "os.system"},
]


@pytest.mark.parametrize("form", MALFORMED, ids=str)
def test_malformed_forms(form: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"malformed|unknown tag"):
        decode([form], None, [])


def _random_form(generator: random.Random, depth: int) -> Any:
    tags = ("float", "tuple", "dict", "tensor", "complex", "bytes", "set", "frozenset", "dtype", "?")
    choice = generator.randrange(8 if depth else 5)
    if choice < 5:
        return (None, True, generator.randrange(-5, 5), 0.5, generator.choice(("", "0x1", "torch.bool", "YQ==")))[
            choice
        ]
    parts = [_random_form(generator, depth - 1) for _ in range(generator.randrange(4))]
    return parts if choice == 5 else {generator.choice(tags): parts if choice == 6 else parts[:1]}


def test_random_forms() -> None:
    seed = random.randrange(1 << 32)
    generator = random.Random(seed)
    for i in range(3000):
        form = _random_form(generator, 4)
        try:
            decode(form, None, [])
        except InvalidArgument:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}, form {i}: {form!r} raised {error!r}") from error


def test_what_is_encoded_is_plain_json() -> None:
    tensors: list[torch.Tensor] = []
    value = {(1, "a"): [b"x", {2.5}, 1j, None], "t": torch.ones(2, 3)}
    form = json.loads(json.dumps(encode(value, tensors, "value")))
    filled: list[torch.Tensor] = []
    result = decode(form, None, filled)
    assert result[1, "a"] == [b"x", {2.5}, 1j, None]
    assert [tuple(tensor.shape) for tensor in filled] == [(2, 3)]
    assert len(tensors) == 1
