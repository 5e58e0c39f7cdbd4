"""The digits with BlueFog's optimizers: each rank learns from its own images and averages with its neighbors.

bfrun -np 4 python -m pelton.compat examples/consensus/digits.py neighbor+atc+dynamic win_put

A way to train is an optimizer and what is put to it: "atc" combines weights after the step instead of beside it,
"dynamic" talks to one neighbor a step, "switch" changes the communication type every 100 steps.
"""

import argparse

import bluefog.torch as bf
import numpy
import torch
from bluefog.common import topology_util
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

BATCH = 16  # of each rank
STEPS_OF_A_KIND = 100  # of communication, where it is switched


def load() -> list[torch.Tensor]:
    """Images and digits to train on and to test on, the same on every rank."""
    digits = load_digits()
    images = digits.images.astype(numpy.float32)[:, None] / 16
    parts = train_test_split(images, digits.target, test_size=0.3, random_state=3, stratify=digits.target)
    return [torch.from_numpy(parts[i]) for i in (0, 2, 1, 3)]


def make_net() -> nn.Module:
    """A convolution and two linear layers over 8 x 8 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def wrap(name: str, is_atc: bool, optimizer: torch.optim.Optimizer, net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that communicates."""
    others = {
        "gradient_allreduce": bf.DistributedGradientAllreduceOptimizer,
        "win_put": bf.DistributedWinPutOptimizer,
        "pull_get": bf.DistributedPullGetOptimizer,
        "push_sum": bf.DistributedPushSumOptimizer,
    }
    if name in others:
        return others[name](optimizer, net)
    kinds = {
        "allreduce": bf.CommunicationType.allreduce,
        "neighbor": bf.CommunicationType.neighbor_allreduce,
        "hierarchical": bf.CommunicationType.hierarchical_neighbor_allreduce,
    }
    make = bf.DistributedAdaptThenCombineOptimizer if is_atc else bf.DistributedAdaptWithCombineOptimizer
    return make(optimizer, net, kinds[name])


def one_peer(optimizer: torch.optim.Optimizer, name: str, turns: object) -> None:
    """Says with whom the next step communicates: another neighbor in each."""
    send, receive = next(turns)
    share = 1.0 / (len(receive) + 1)
    if name in ("win_put", "push_sum"):
        optimizer.dst_weights = dict.fromkeys(send, 1.0 if name == "win_put" else 1.0 / (len(send) + 1))
    else:
        optimizer.self_weight, optimizer.src_weights = share, dict.fromkeys(receive, share)
        optimizer.dst_weights = dict.fromkeys(send, 1.0)


def switch(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Averages with neighbors and over all ranks take turns."""
    kinds = (bf.CommunicationType.neighbor_allreduce, bf.CommunicationType.allreduce)
    optimizer.communication_type = kinds[step // STEPS_OF_A_KIND % len(kinds)]


def accuracy(net: nn.Module, images: torch.Tensor, digits: torch.Tensor) -> float:
    """Of this rank's net, in [0, 1]."""
    with torch.no_grad():
        return (net(images).argmax(1) == digits).double().mean().item()


def train(way: str, epochs: int) -> nn.Module:
    """This rank's net after a training from the same beginning on all ranks."""
    name, *further = way.split("+")
    torch.manual_seed(1)
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    bf.broadcast_parameters(net.state_dict(), root_rank=0)
    optimizer = wrap(name, "atc" in further, optimizer, net)
    turns = topology_util.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())

    images, digits, _, _ = load()
    images, digits = images[bf.rank() :: bf.size()], digits[bf.rank() :: bf.size()]
    order = torch.Generator().manual_seed(bf.rank())
    steps = len(images) // BATCH - 1  # as many on every rank
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, epochs * steps)
    for step in range(epochs * steps):
        if step % steps == 0:
            bf.barrier()  # nobody is an epoch ahead, or what windows hold would be too old to learn from
            shuffled = torch.randperm(len(images), generator=order)
        mine = shuffled[step % steps * BATCH :][:BATCH]
        if "dynamic" in further:
            one_peer(optimizer, name, turns)
        if "switch" in further:
            switch(optimizer, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images[mine]), digits[mine]).backward()
        optimizer.step()
        schedule.step()
    bf.barrier()
    if name in ("win_put", "pull_get", "push_sum"):
        optimizer.unregister_window()
    return net


def main() -> None:
    """Runs in every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", default=["neighbor+atc+dynamic"])
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()

    torch.set_num_threads(1)
    bf.init(topology_util.ExponentialTwoGraph)
    bf.set_machine_topology(topology_util.RingGraph(bf.machine_size()))
    _, _, test_images, test_digits = load()
    for way in options.ways:
        reached = accuracy(train(way, options.epochs), test_images, test_digits)
        mean = bf.allreduce(torch.tensor([reached], dtype=torch.float64)).item()
        print(f"rank {bf.rank()}: {way}: accuracy {reached:.4f}, mean of the ranks' {mean:.4f}", flush=True)


if __name__ == "__main__":
    main()
