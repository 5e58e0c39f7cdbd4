"""The flags that Bagua's launchers share, and the variables that they become for the ranks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton_run.variables import second_name, value_of

_NO_BAGUA_NET = (
    "--enable_bagua_net: bagua-net is a plug-in for the sockets of Bagua's NCCL, and Pelton does not have it. Leave "
    "the flag out; PELTON_WIRE and PELTON_INTERFACE say what carries Pelton's messages between hosts"
)


@dataclass(frozen=True)
class _Setting:
    """A flag with a value, and the variable that it becomes. Threads: a value. Owns: its texts."""

    flag: str
    variable: str
    kind: type[int] | type[float]
    default: str
    meaning: str


_SETTINGS = (
    _Setting("--bagua_service_port", "BAGUA_SERVICE_PORT", int, "29501", "port of the tuning service on node 0"),
    _Setting("--default_bucket_size", "BAGUA_DEFAULT_BUCKET_SIZE", int, "10485760", "bytes that share a bucket"),
    _Setting("--autotune_level", "BAGUA_AUTOTUNE", int, "0", "how much is tuned while training; 0: nothing"),
    _Setting("--autotune_max_samples", "BAGUA_AUTOTUNE_MAX_SAMPLES", int, "60", "samples after which tuning ends"),
    _Setting(
        "--autotune_sampling_confidence_time",
        "BAGUA_AUTOTUNE_SAMPLING_CONFIDENCE_TIME_S",
        float,
        "5.0",
        "seconds that one sample lasts",
    ),
    _Setting(
        "--autotune_warmup_time",
        "BAGUA_AUTOTUNE_WARMUP_TIME_S",
        float,
        "30.0",
        "seconds in which nothing is sampled at first",
    ),
)
_LOG = "BAGUA_IS_OUTPUT_AUTOTUNE_LOG"
_OFF = frozenset({"", "0", "false", "no", "off"})


class _Refuse(argparse.Action):
    """A flag that makes no sense here. Threads: one. Owns: nothing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Ends the program with the reason, and exit code 2."""
        parser.error(_NO_BAGUA_NET)


def spellings(flag: str) -> list[str]:
    """A flag as Bagua writes it, and as torchrun does: --master_port and --master-port."""
    return list(dict.fromkeys([flag, "--" + flag.removeprefix("--").replace("_", "-")]))


def is_on(variable: str) -> bool:
    """Whether the user has set a switch of Bagua's, under either name."""
    return value_of(variable, "").strip().lower() not in _OFF


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the tuning flags; what the environment says under either name is their default."""
    for setting in _SETTINGS:
        default = value_of(setting.variable, setting.default)
        text = f"{setting.meaning} ({setting.variable}; default: {setting.default})"
        parser.add_argument(*spellings(setting.flag), type=setting.kind, default=default, help=text)
    text = f"tuning writes a log ({_LOG})"
    parser.add_argument(*spellings("--is_output_autotune_log"), action="store_true", default=is_on(_LOG), help=text)
    add_refusals(parser)


def add_refusals(parser: argparse.ArgumentParser) -> None:
    """Adds the flag that makes no sense here, so that it is refused with the reason."""
    parser.add_argument(*spellings("--enable_bagua_net"), action=_Refuse, nargs=0, help="refused: there is none")


def under_both_names(variables: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, str]:
    """Variables of Bagua's, and the same under Pelton's names where somebody has said something.

    A script may set a variable under Bagua's name, and Pelton's name goes before that. So a mere default is not set
    under Pelton's name, unless the environment has that name already.

    Args:
      variables: by Bagua's names.
      defaults: the values that nobody has to say, by the same names; a variable without one has been said.
    """
    texts = {name: str(value) for name, value in variables.items()}
    said = [name for name in variables if variables[name] != defaults.get(name) or second_name(name) in os.environ]
    return {**texts, **{second_name(name): texts[name] for name in said}}


def variables_of(options: argparse.Namespace) -> dict[str, str]:
    """What the flags mean for the ranks' environment; see `under_both_names`.

    Args:
      options: with the flags of `add_flags`, and `master_addr`.
    """
    values: dict[str, object] = {
        setting.variable: getattr(options, setting.flag.removeprefix("--")) for setting in _SETTINGS
    }
    values[_LOG] = int(options.is_output_autotune_log)
    defaults = {setting.variable: setting.kind(setting.default) for setting in _SETTINGS}
    result = under_both_names(values, {**defaults, _LOG: 0})
    if options.autotune_level > 0:
        result["AUTO_TUNE_SERVER_ADDR"] = f"{options.master_addr}:{options.bagua_service_port}"
    return result
