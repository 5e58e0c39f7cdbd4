"""Every code block of every page runs: as Python, as commands, or as a part of a file that is compiled and run."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from blocks_main import CONTEXTS, RANKS
from pages import ROOT, Block, blocks, pages
from pelton.torch_api.env import find_free_network_port
from spawn import HERE, Outcome, environment, launcher, run

_LIMIT_S = 240
BLOCKS = {block.name: block for block in blocks()}
PYTHON = [name for name, block in BLOCKS.items() if block.language == "python"]

# Files that hold a block of C++ or C line by line, each built by the lane that its folder belongs to.
SHOWN = {
    "docs/actors.md cpp 1": "core/actor/example_test.cc",
    "docs/actors.md cpp 2": "core/actor/example_test.cc",
    "docs/actors.md cpp 3": "core/actor/polling_test.cc",
    "docs/adding_a_transport.md cpp 1": "comm/transport/shm/shm_transport.cc",
    "docs/adding_a_transport.md cpp 2": "comm/transport/shm/shm_conformance_test.cc",
    "docs/adding_a_transport.md cpp 3": "comm/lane/lane_test.cc",
    "docs/adding_an_algorithm.md cpp 1": "algorithms/example/elementwise_max.cc",
    "docs/collectives.md cpp 1": "comm/collectives/recipes/direct.cc",
    "docs/cpp.md c 1": "backend/c/pelton_test.c",
    "docs/cpp.md cpp 1": "examples/cpp_train/train.cc",
    "docs/cpp.md cpp 2": "examples/cpp_train/train.cc",
}
# Pages with drawings and printed lines, which are indented and no code; code has a fence that names its language.
DRAWINGS = {
    "docs/actors.md": 1,
    "docs/control_plane.md": 2,
    "docs/cuda_gotchas.md": 1,
    "docs/daemon.md": 2,
    "docs/hierarchy.md": 1,
    "docs/python.md": 1,
}


def test_every_block_is_run_by_a_test_here() -> None:
    code = {name for name, block in BLOCKS.items() if block.language != "indented"}
    assert code == {*CONTEXTS, *SHOWN, *SHELL}


def test_what_is_indented_is_a_drawing() -> None:
    indented = [block.page for block in BLOCKS.values() if block.language == "indented"]
    assert {page: indented.count(page) for page in indented} == DRAWINGS


def test_no_fence_escapes_the_list() -> None:
    """One of another form, or inside a list."""
    fences = sum(len(re.findall(r"^ *(?:```|~~~)", page.read_text(), re.MULTILINE)) for page in pages())
    assert fences == 2 * len([block for block in BLOCKS.values() if block.language != "indented"])


@functools.cache
def job(ranks: int) -> tuple[list[list[str]], Outcome]:
    """The Python blocks that ran, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(launcher(ranks, HERE / "blocks_main.py", folder), _LIMIT_S)
        files = [Path(folder, f"rank{rank}.txt") for rank in range(ranks)]
        return [file.read_text().splitlines() if file.exists() else [] for file in files], outcome


@pytest.mark.parametrize("name", PYTHON)
def test_it_runs(name: str) -> None:
    ran, outcome = job(RANKS.get(BLOCKS[name].page, 2))
    assert all(name in own for own in ran), outcome.output + outcome.errors


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_a_part_of_a_file_that_is_compiled(name: str) -> None:
    wanted = BLOCKS[name].text
    lines, count = (ROOT / SHOWN[name]).read_text().splitlines(keepends=True), len(wanted.splitlines())
    parts = (textwrap.dedent("".join(lines[i : i + count])) for i in range(len(lines)))
    assert wanted in parts, f"{SHOWN[name]} has no such lines any more; copy them to the page anew"


# Prints its place in the job; imports nothing, as four ranks at once would take seconds for it.
_PLACE = """
import os, sys
words = [str(os.environ.get(name)) for name in ("RANK", "WORLD_SIZE", "PELTON_REPLACE_GLOO")]
os.write(1, " ".join(["place", *words, str(sys.argv[1:])]).encode() + b"\\n")  # whole, as others print there too
"""
_MEET = """
import os, torch
import pelton.torch_api as bagua
bagua.init_process_group()
total = torch.tensor([bagua.get_rank() + 1.0])
bagua.allreduce_inplace(total, op=bagua.ReduceOp.SUM)
os.write(1, f"total {total.item()}\\n".encode())  # whole, as others print there too
bagua.destroy_process_group()
"""
_ACCELERATE = """
import os
import accelerate, torch
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Linear(3, 2)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
accelerator.backward(model(torch.ones(1, 3)).sum())
optimizer.step()
backend = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
words = [type(model).__name__, str(accelerator.num_processes), type(backend).__module__]
os.write(1, " ".join(["found", *words]).encode() + b"\\n")
accelerator.end_training()
"""


class Place:
    """A folder in which commands of a page run, with the programs under test first on the path and a script for each
    name. What pip is asked for is kept in the file `pip`. Threads: one. Owns: what it has started.
    """

    def __init__(self, folder: Path, ssh: Path) -> None:
        self.folder = folder
        programs = {
            "pelton": "-c 'import sys; from pelton_run.command_line import main; sys.exit(main())'",
            "python": "",
            "torchrun": "-m torch.distributed.run",
        }
        bin_folder = folder / "bin"
        bin_folder.mkdir(exist_ok=True)
        bodies = {name: f'exec {shlex.quote(sys.executable)} {words} "$@"' for name, words in programs.items()}
        bodies["pip"] = f'echo "$@" >> {shlex.quote(str(folder / "pip"))}'
        for name, body in bodies.items():
            (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (bin_folder / name).chmod(0o755)
        self.port = str(find_free_network_port())
        self.changes = {
            "PATH": f"{bin_folder}:{environment()['PATH']}",
            "PELTON_SSH": f"'{ssh}'",
            "PET_MASTER_PORT": self.port,  # torchrun's, instead of one that all of a machine share
        }
        for script in ("train.py", "script.py"):
            (folder / script).write_text(_PLACE)

    def run(self, text: str) -> str:
        """Runs commands to their end; what they printed."""
        outcome = run(["sh", "-e", "-c", f"cd {shlex.quote(str(self.folder))}\n{text}"], _LIMIT_S, self.changes)
        assert outcome.code == 0, outcome.output + outcome.errors
        return outcome.output

    @contextlib.contextmanager
    def started(self, text: str) -> Iterator[subprocess.Popen[str]]:
        """Commands that go on until they are ended by SIGTERM, which they do in good order."""
        process = subprocess.Popen(
            ["sh", "-e", "-c", f"exec {text.strip()}"],
            cwd=self.folder,
            env=environment(self.changes),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(_LIMIT_S) == 0
        finally:
            process.kill()
            process.communicate()


def _places(output: str) -> list[str]:
    """What the ranks printed, without which rank's line it is."""
    return sorted(re.findall(r"place (.*)", output))


def _of(size: int, arguments: str = "[]", gloo: str = "None") -> list[str]:
    return sorted(f"{rank} {size} {gloo} {arguments}" for rank in range(size))


def _script_of_the_readme(place: Place, block: Block) -> None:
    (place.folder / "script.py").write_text(BLOCKS["README.md python 1"].text)
    assert sorted(re.findall(r"rank (\d) is done", place.run(block.text))) == ["0", "1", "2", "3"]


def _packages(_: Place, block: Block) -> None:
    """Nothing is installed by a test: tools/setup installs the same packages, and the build needs the same torch."""
    text = block.text.replace("\\\n", "")
    words = [word for word in shlex.split(text.splitlines()[0])[2:] if not word.startswith("-")]
    assert words
    assert set(words) <= set(re.findall(r"[a-z0-9+.-]+", (ROOT / "tools" / "setup").read_text()))
    (version,) = re.findall(r"pip install torch==(\S+) && pip install \.$", text, re.MULTILINE)
    assert f"torch=={version}" in (ROOT / "tools" / "requirements.txt").read_text()


def _programs(_: Place, block: Block) -> None:
    """They are the lanes `demo` and all."""
    for line in block.text.splitlines():
        assert os.access(ROOT / line.split()[0], os.X_OK), line


def _service(place: Place, block: Block) -> None:
    install, serve = block.text.replace("29501", place.port).splitlines()
    place.run(install)
    (extra,) = re.findall(r"pelton\[(\w+)\]", (place.folder / "pip").read_text())
    assert f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text()
    variable, command = serve.split(maxsplit=1)
    with place.started(f"env {variable} {command}") as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == f"tuning service at 127.0.0.1:{place.port}"


def _compat(place: Place, block: Block) -> None:
    alone, four = block.text.splitlines()
    assert _places(place.run(alone)) == ["None None None ['--epochs', '3']"]
    (place.folder / "train.py").write_text(f"import os, bagua_core\n{_PLACE}")
    place.changes["PYTHONPATH"] = ""  # the block's own assignment stands before what is installed
    assert _places(place.run(four)) == _of(4)


def _daemons(place: Place, block: Block) -> None:
    """Each rank's lines, beside each other; the daemon's folder and port are others."""
    token, daemon, trainer = block.text.split("\n", 2)
    place.changes["PELTON_JOB_TOKEN"] = "a-token-of-sixteen-bytes-or-more"
    assert token.startswith("export PELTON_JOB_TOKEN=")
    (place.folder / "script.py").write_text(_MEET)

    def of_rank(rank: int, text: str) -> str:
        text = text.replace("/run/user/1000/job/0", f"{place.folder}/{rank}/s").replace("7000", place.port)
        text = text.replace(" --socket", f" --idle-timeout {_LIMIT_S} --socket")  # where torch takes long to import
        return text.replace("--rank 0", f"--rank {rank}").replace("RANK=0", f"RANK={rank}").strip()

    from pelton_run import daemons

    (place.folder / "bin" / "pelton-daemon").symlink_to(daemons.program())
    with contextlib.ExitStack() as stack:
        for rank in range(2):
            (place.folder / str(rank)).mkdir(mode=0o700)
            stack.enter_context(place.started(of_rank(rank, daemon)))
        end = time.monotonic() + _LIMIT_S
        while not all((place.folder / str(rank) / "s").exists() for rank in range(2)):
            assert time.monotonic() < end
            time.sleep(0.05)
        both = f"{of_rank(0, trainer)} & {of_rank(1, trainer)}; wait"
        assert place.run(both).splitlines() == ["total 3.0"] * 2


def _topologies(place: Place, block: Block) -> None:
    everything, one, picture = block.text.splitlines()
    assert "one_peer_exponential" in place.run(everything)
    assert "mesh_grid" in place.run(one)
    place.run(picture)
    assert "<svg" in (place.folder / "picture.svg").read_text()


def _given_graph(place: Place, block: Block) -> None:
    printed = place.run(block.text)
    assert "given" in printed and "0.5000" in printed, printed


def _launchers(place: Place, block: Block) -> None:
    own, torchs = block.text.splitlines()
    assert _places(place.run(own)) == _of(4, "['--epochs', '3']")
    assert _places(place.run(torchs)) == _of(4)


def _baguas_launchers(place: Place, block: Block) -> None:
    """ssh is stood in for, and both of its hosts are this one."""
    static, elastic, by_ssh = block.text.splitlines()
    assert _places(place.run(static)) == _of(8)[:4]
    assert _places(place.run(elastic)) == _of(4)
    place.changes["PELTON_TLS_CA"] = "ca.pem"
    assert _places(place.run(by_ssh)) == _of(8)


def _gloos_seat(place: Place, block: Block) -> None:
    assert _places(place.run(block.text)) == _of(4, gloo="1")


def _accelerates_own_class(place: Place, block: Block) -> None:
    """What is prepared is torch's DistributedDataParallel, and Pelton carries its gradients."""
    (place.folder / "train.py").write_text(_ACCELERATE)
    assert sorted(re.findall(r"found (.*)", place.run(block.text))) == ["DistributedDataParallel 2 pelton._C"] * 2


def _two_hosts(place: Place, block: Block) -> None:
    """The same line on both hosts, which are this one."""
    line = block.text.replace("FIRST_HOST:29400", f"127.0.0.1:{place.port}").strip()
    assert _places(place.run(f"{line} & {line}; wait")) == _of(8)


def _stand_ins(place: Place, block: Block) -> None:
    (place.folder / "main.py").write_text(f"import torchvision\n{_PLACE}")
    (place.folder / "tests").symlink_to(ROOT / "tests")
    place.changes["PYTHONPATH"] = ""
    assert _places(place.run(block.text)) == _of(2, "['--epochs', '1']")


SHELL: dict[str, Callable[[Place, Block], None]] = {
    "README.md sh 1": _script_of_the_readme,
    "README.md sh 2": _packages,
    "README.md sh 3": _programs,
    "docs/autotune.md sh 1": _service,
    "docs/communication.md sh 1": _compat,
    "docs/daemon.md sh 1": _daemons,
    "docs/graphs.md sh 1": _topologies,
    "docs/graphs.md sh 2": _given_graph,
    "docs/python.md sh 1": _launchers,
    "docs/python.md sh 2": _baguas_launchers,
    "docs/pytorch.md sh 1": _gloos_seat,
    "docs/pytorch.md sh 2": _accelerates_own_class,
    "docs/start_here.md sh 1": _two_hosts,
    "tests/python/standins/README.md sh 1": _stand_ins,
}


@pytest.mark.parametrize("name", SHELL)
def test_its_commands_run(name: str, tmp_path: Path, ssh: Path) -> None:
    SHELL[name](Place(tmp_path, ssh), BLOCKS[name])
