"""A small transformer learns to write Python, letter by letter, from the standard library's own text; PowerSGD sends
the gradients of its matrices as two thin factors.

pelton run -np 2 examples/python/characters.py
"""

from __future__ import annotations

import argparse
import math
import pathlib

import pelton
import torch
from torch import nn
from torch.nn.functional import cross_entropy

CONTEXT, WIDTH, STEPS, BATCH = 48, 64, 240, 32


class Writer(nn.Module):
    """Tells of each position's next letter how likely it is."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Shape: [batch, CONTEXT] to [batch, CONTEXT, letters]."""
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        return self.head(self.layers(self.letter(text) + self.place.weight, mask=mask, is_causal=True))


def read() -> tuple[torch.Tensor, int]:
    """The text of a module as numbers, and how many different letters it has."""
    text = pathlib.Path(argparse.__file__).read_text()
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    return torch.tensor([number[letter] for letter in text]), len(letters)


def sample(text: torch.Tensor, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of it, and the same moved on by a letter."""
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH // pelton.world_size(),), generator=generator)
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


torch.set_num_threads(1)
torch.manual_seed(0)
pelton.init()
text, letters = read()
model = Writer(letters)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model = pelton.wrap(model, optimizer, "power_sgd", rank=4, start_round=20)
generator = torch.Generator().manual_seed(pelton.rank())
recent: list[float] = []
for _ in range(STEPS):
    inputs, targets = sample(text, generator)
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()
    optimizer.step()
    recent = [*recent[-19:], loss.item()]

bits = sum(recent) / len(recent) / math.log(2)
print(f"rank {pelton.rank()}: {bits:.2f} bits a letter; guessing takes {math.log2(letters):.2f}")
