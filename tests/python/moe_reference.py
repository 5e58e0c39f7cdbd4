"""What the gates of a mixture of experts do, said with loops over tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

TINY = torch.finfo(torch.float32)


@dataclass
class Routes:
    """Where tokens go. Threads: a value. Owns: its lists.

    Attributes:
      weights: by token, expert and place, of those that are served.
      counts: by expert, how many tokens chose it first.
      l_aux: the balance loss.
    """

    capacity: int
    weights: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    l_aux: torch.Tensor = field(default_factory=lambda: torch.tensor(0.0))

    def dense(self, tokens: int, experts: int) -> torch.Tensor:
        rows = torch.zeros(tokens, experts, self.capacity)
        for place, weight in self.weights.items():
            rows[place] = weight
        return rows


def gumbel(shape: tuple[int, ...]) -> torch.Tensor:
    """As torch.distributions draws them."""
    drawn: torch.Tensor = torch.distributions.Gumbel(torch.tensor(0.0), torch.tensor(1.0)).rsample(shape)
    return drawn


def softmax(row: torch.Tensor) -> torch.Tensor:
    exponents = (row - row.max()).exp()
    return exponents / exponents.sum()


def largest(row: torch.Tensor, but: int = -1) -> int:
    best = -1
    for expert in range(len(row)):
        if expert != but and (best < 0 or row[expert] > row[best]):
            best = expert
    return max(best, 0)


def balance(gates: list[torch.Tensor], counts: list[int]) -> torch.Tensor:
    total = torch.tensor(0.0)
    for expert, count in enumerate(counts):
        total = total + sum(row[expert] for row in gates) / len(gates) * (count / len(gates))
    return total * len(counts)


def top1(logits: torch.Tensor, factor: float, least: int, used: list[int] | None, policy: str | None) -> Routes:
    """See `top1gating`; draws the same random numbers in the same order."""
    tokens, experts = logits.shape
    noise = gumbel((tokens, experts)) if policy == "RSample" else torch.zeros(tokens, experts)
    gates = [softmax(row) for row in logits]
    scores = [row + extra for row, extra in zip(logits, noise)] if policy == "RSample" else gates
    lots = torch.rand(tokens, experts)
    routes = Routes(max(math.ceil(tokens / experts * factor), least))
    queues: list[list[int]] = [[] for _ in range(experts)]
    for token in range(tokens):
        if used is None or used[token]:
            queues[largest(scores[token])].append(token)
    routes.counts = [len(queue) for queue in queues]
    routes.l_aux = balance(gates, routes.counts)
    for expert, queue in enumerate(queues):
        winners = sorted(queue, key=lambda token: -float(lots[token, expert]))[: routes.capacity]
        for place, token in enumerate(sorted(winners)):
            routes.weights[token, expert, place] = gates[token][expert]
    return routes


def top2(logits: torch.Tensor, factor: float, used: list[int] | None) -> Routes:
    """See `top2gating`."""
    tokens, experts = logits.shape
    noisy = logits + gumbel((tokens, experts))
    gates = [softmax(row) for row in logits]
    routes = Routes(math.ceil(2 * tokens / experts * factor), counts=[0] * experts)
    served = [token for token in range(tokens) if used is None or used[token]]
    chosen = {token: (largest(gates[token]), 0) for token in served}
    chosen = {token: (first, largest(noisy[token], but=first)) for token, (first, _) in chosen.items()}
    for first, _ in chosen.values():
        routes.counts[first] += 1
    taken = [0] * experts
    places: dict[int, list[tuple[int, int]]] = {token: [] for token in served}
    for choice in (0, 1):
        for token in served:
            expert = chosen[token][choice]
            if taken[expert] < routes.capacity:
                places[token].append((expert, taken[expert]))
            taken[expert] += 1
    for token, pairs in places.items():
        total = sum((gates[token][expert] for expert, _ in pairs), torch.tensor(0.0)).clamp(min=TINY.eps)
        for expert, place in pairs:
            routes.weights[token, expert, place] = gates[token][expert] / total
    routes.l_aux = balance(gates, routes.counts)
    return routes


def layer(
    tokens: list[torch.Tensor],
    routes: list[Routes],
    experts: list[Callable[[torch.Tensor], torch.Tensor]],
) -> list[torch.Tensor]:
    """What a layer makes of each rank's tokens, one token and one expert at a time."""
    outputs = []
    for mine, ways in zip(tokens, routes):
        rows = [torch.zeros_like(row) for row in mine]
        for (token, expert, _), weight in ways.weights.items():
            rows[token] = rows[token] + weight * experts[expert](mine[token])
        outputs.append(torch.stack(rows))
    return outputs
