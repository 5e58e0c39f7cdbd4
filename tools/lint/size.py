"""Files and functions stay small enough to be read at one sitting."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.lint.source import Finding, Source

MAX_FILE_LINES = 600
MAX_PRODUCT_LINES = 500  # of C++ that is no test
MAX_FUNCTION_LINES = 70
# In the comment before a long function, with the reason.
EXCEPTION = re.compile(r"\bLong because\b")
_NOT_A_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum|extern)\b")
_NAMESPACE = re.compile(r"\bnamespace\b[\w:\s]*$")
_CONTROL = re.compile(r"^(if|for|while|switch|do|else|try|catch)\b")


def check_file(source: Source) -> Iterator[Finding]:
    """Length of a file of code."""
    most = MAX_PRODUCT_LINES if source.is_cpp and not source.is_test else MAX_FILE_LINES
    if source.path.endswith((*("h", "cc", "cu", "py", "bzl"), "BUILD")) and len(source.lines) > most:
        yield source.at(1, f"{len(source.lines)} lines; at most {most}")


def check_functions(source: Source) -> Iterator[Finding]:
    """Length of C++ functions, from the line that opens the head to the closing brace."""
    if not source.is_cpp:
        return
    for first, last in function_spans(source.code):
        length = last - first + 1
        excused = any(EXCEPTION.search(line) for line in source.lines[max(0, first - 4) : first])
        if length > MAX_FUNCTION_LINES and not excused:
            allowed = f"at most {MAX_FUNCTION_LINES}, or a comment that begins `Long because`"
            yield source.at(first, f"a function of {length} lines; {allowed}")


def function_spans(code: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each outermost body that follows a parameter list; lines count from 1.

    Works on braces: what precedes an opening brace since the last `;`, `{` or `}` is its head. A lambda or block inside
    a function belongs to that function.
    """
    depth, function_depth, head, head_line, start = 0, -1, "", 0, 0
    for number, line in enumerate(code, 1):
        if line.lstrip().startswith("#"):
            continue
        for character in line:
            if character in "{};":
                if character == "{":
                    if function_depth < 0 and _opens_function(head):
                        function_depth, start = depth, head_line
                    depth += 1
                elif character == "}":
                    depth -= 1
                    if depth == function_depth:
                        yield start, number
                        function_depth = -1
                head = ""
            elif head or not character.isspace():
                if not head:
                    head_line = number
                head += character
        head += " " if head else ""


def _opens_function(head: str) -> bool:
    stripped = re.sub(r"^((public|private|protected)\s*:)\s*", "", head.strip())
    stripped = re.sub(r"^template\s*<.*?>\s*(?=[\w:])", "", stripped)
    if "(" not in stripped or _CONTROL.match(stripped) or _NAMESPACE.search(stripped):
        return False
    before_parameters = stripped.split("(")[0]
    return not _NOT_A_FUNCTION.search(before_parameters) and "=" not in before_parameters.replace("operator=", "")
