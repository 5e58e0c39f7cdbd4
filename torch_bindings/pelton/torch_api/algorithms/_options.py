"""Options of the runtime's algorithms: texts by name."""

from __future__ import annotations

from collections.abc import Mapping


def to_text(**values: bool | int | float | str | None) -> dict[str, str]:
    """The options as the runtime takes them; those that are None are left to its defaults."""
    return {name: _text(value) for name, value in values.items() if value is not None}


def compression(
    codec: str | None, codec_options: Mapping[str, object] | None, error_feedback: bool | None = None
) -> dict[str, str]:
    """The options of algorithms that encode their messages.

    Args:
      codec: its name; None for the algorithm's default.
      codec_options: of the codec.
      error_feedback: add what a message lacks to the next; None where the codec needs it.
    """
    options = to_text(codec=codec, error_feedback=error_feedback)
    for name, value in (codec_options or {}).items():
        options[f"codec.{name}"] = _text(value)
    return options


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
