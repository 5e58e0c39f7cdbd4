"""What the launcher and the user say through environment variables. Every function reads its variable at each call.

Each of Bagua's variables is read under two names, and PELTON_AUTOTUNE, say, goes before BAGUA_AUTOTUNE.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pelton_run import variables
from pelton_run.variables import name_in_force

from pelton._training import _launchers
from pelton.errors import InvalidArgument

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_TORCHRUN_VARIABLES = ("RANK", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _task(name: str, default: int) -> int:
    """A number that the launcher has given to this process, whatever launcher that was."""
    if name not in os.environ:
        return int(_launchers.variables().get(name, default))
    return _integer(name, default)


def _integer(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"{name}={text!r} in the environment: not an integer") from None


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"{name}={text!r} in the environment: not a number") from None


def _switch(name: str, default: bool = False) -> bool:
    text = os.environ.get(name, "on" if default else "").strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise InvalidArgument(f"{name}={text!r} in the environment: neither on nor off")


def is_backend_in_daemon() -> bool:
    """Whether each rank's backend is to work in a pelton-daemon (PELTON_BACKEND; in the rank if unset).

    Raises:
      InvalidArgument: it is neither "process" nor "daemon".
    """
    try:
        return variables.is_backend_in_daemon()
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def daemon_idle_s() -> float:
    """Seconds without a trainer after which a daemon ends that a trainer has started (PELTON_DAEMON_IDLE_TIMEOUT)."""
    return _number("PELTON_DAEMON_IDLE_TIMEOUT", 60.0)


def get_world_size() -> int:
    """Number of ranks of the job (WORLD_SIZE; 1 if unset and no launcher says it).

    Like the four that follow it understands the variables of SLURM, Open MPI, MVAPICH and PMI (`_launchers`).

    Raises:
      InvalidArgument: the launcher speaks of several tasks, but not of this one's number.
    """
    return _task("WORLD_SIZE", 1)


def get_rank() -> int:
    """This process's number in the job (RANK; 0 if unset)."""
    return _task("RANK", 0)


def get_local_rank() -> int:
    """This process's number on its node (LOCAL_RANK; 0 if unset)."""
    return _task("LOCAL_RANK", 0)


def get_local_size() -> int:
    """Number of ranks on this node (LOCAL_WORLD_SIZE; 1 if unset)."""
    return _task("LOCAL_WORLD_SIZE", 1)


def get_node_rank() -> int:
    """This node's number: GROUP_RANK under torchrun, else NODE_RANK (0 if unset)."""
    if all(name in os.environ for name in _TORCHRUN_VARIABLES):
        return _integer("GROUP_RANK", 0)
    return _task("NODE_RANK", 0)


def get_master_addr() -> str:
    """Where rank 0 is reached (MASTER_ADDR; loopback if unset)."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def get_default_bucket_size() -> int:
    """Size up to which tensors share a bucket (PELTON_DEFAULT_BUCKET_SIZE; 10 MiB if unset). Units: bytes."""
    return _integer(name_in_force("BAGUA_DEFAULT_BUCKET_SIZE"), 10 << 20)


def get_bagua_service_port() -> int:
    """Port of the tuning service (PELTON_SERVICE_PORT; -1, a free one, if unset)."""
    return _integer(name_in_force("BAGUA_SERVICE_PORT"), -1)


def get_autotune_level() -> int:
    """How much is tuned while training (PELTON_AUTOTUNE; 0, nothing, if unset)."""
    return _integer(name_in_force("BAGUA_AUTOTUNE"), 0)


def get_autotune_max_samples() -> int:
    """After how many samples tuning ends (PELTON_AUTOTUNE_MAX_SAMPLES; 60 if unset)."""
    return _integer(name_in_force("BAGUA_AUTOTUNE_MAX_SAMPLES"), 60)


def get_autotune_sampling_confidence_time_s() -> float:
    """How long one sample lasts (PELTON_AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S; 5 if unset). Units: seconds."""
    return _number(name_in_force("BAGUA_AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S"), 5.0)


def get_autotune_warmup_time_s() -> float:
    """How long nothing is sampled at first (PELTON_AUTOTUNE_WARMUP_TIME_S; 30 if unset). Units: seconds."""
    return _number(name_in_force("BAGUA_AUTOTUNE_WARMUP_TIME_S"), 30.0)


def get_autotune_server_wait_time() -> int:
    """How long ranks wait for the tuning service (PELTON_AUTOTUNE_SERVER_WAIT_TIME; 300 if unset, at least 30).

    Units: seconds.
    """
    return max(30, _integer(name_in_force("BAGUA_AUTOTUNE_SERVER_WAIT_TIME"), 300))


def get_is_output_autotune_log() -> bool:
    """Whether tuning writes a log (PELTON_IS_OUTPUT_AUTOTUNE_LOG; off if unset, and "0" is off)."""
    return _switch(name_in_force("BAGUA_IS_OUTPUT_AUTOTUNE_LOG"))


def is_report_metrics_switch_on() -> bool:
    """Whether metrics are reported (PELTON_REPORT_METRICS; off if unset)."""
    return _switch(name_in_force("BAGUA_REPORT_METRICS"))


def find_free_network_port() -> int:
    """A port that was free a moment ago on every interface of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def operation_timeout_s() -> float:
    """How long one operation may take (PELTON_TIMEOUT; 1800, as gloo's, if unset): an evaluation on rank 0 alone fits
    into it. Units: seconds.
    """
    return _positive("PELTON_TIMEOUT", 1800.0)


def join_timeout_s() -> float:
    """How long the ranks may take to meet, in the job and in each group (PELTON_JOIN_TIMEOUT; PELTON_TIMEOUT's if
    unset). Units: seconds.
    """
    return _positive("PELTON_JOIN_TIMEOUT", operation_timeout_s())


def heartbeat_timeout_s() -> float:
    """How long a rank may be silent before it counts as lost (PELTON_HEARTBEAT_TIMEOUT; 10 if unset).

    Units: seconds.
    """
    return _positive("PELTON_HEARTBEAT_TIMEOUT", 10.0)


def stall_s() -> float:
    """After how long a wait is told of (PELTON_STALL_SECONDS; 30 if unset, 0 for never). Units: seconds."""
    value = _number("PELTON_STALL_SECONDS", 30.0)
    if not 0 <= value < float("inf"):
        raise InvalidArgument(f"PELTON_STALL_SECONDS={value:g} in the environment: must be 0 or more, and finite")
    return value


def check_interval() -> int:
    """After how many steps the ranks compare their weights (PELTON_CHECK; 0, never, if unset). Units: steps.

    Raises:
      InvalidArgument: it is negative.
    """
    interval = _integer("PELTON_CHECK", 0)
    if interval < 0:
        raise InvalidArgument(f"PELTON_CHECK={interval} in the environment: must be 0 or more")
    return interval


def interface() -> str:
    """The network interface of the wire between hosts (PELTON_INTERFACE; the one towards the coordinator if unset)."""
    return os.environ.get("PELTON_INTERFACE", "")


def wire() -> str:
    """What carries messages between hosts (PELTON_WIRE; "tcp" if unset): "tcp", or "ucx" where there is RDMA."""
    return os.environ.get("PELTON_WIRE", "tcp")


def is_insecure() -> bool:
    """Whether the job's token may be sent to another host in clear (PELTON_INSECURE; no if unset)."""
    return _switch("PELTON_INSECURE")


def makes_torch_group() -> bool:
    """Whether `init_process_group` initialises torch.distributed too (PELTON_TORCH_DISTRIBUTED; yes if unset)."""
    return _switch("PELTON_TORCH_DISTRIBUTED", default=True)


def host_label() -> str:
    """Ranks with different labels share no memory, wherever they are (PELTON_HOST_LABEL; none if unset)."""
    return os.environ.get("PELTON_HOST_LABEL", "")


def schedules() -> str:
    """Which schedule runs a collective between hosts: the rows of the file PELTON_SCHEDULES (none if unset).

    Raises:
      InvalidArgument: the file cannot be read.
    """
    path = os.environ.get("PELTON_SCHEDULES", "")
    if not path:
        return ""
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"PELTON_SCHEDULES={path!r} in the environment: {error}") from None


def _positive(name: str, default: float) -> float:
    value = _number(name, default)
    if not 0 < value < float("inf"):
        raise InvalidArgument(f"{name}={value:g} in the environment: must be positive and finite")
    return value
