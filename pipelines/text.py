"""Names from other people's files, made safe for a terminal and for a spreadsheet.

A class or file name may contain escape sequences, which a terminal executes, or begin like a
formula, which a spreadsheet executes. HTML is escaped by Jinja, JSON by `json`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What spreadsheets take for the start of a formula, also behind spaces and in full width. A
# number with a sign is harmless and stays a number. Apostrophes before it are part of the
# pattern, so that `from_csv` removes exactly the one that `for_csv` put there.
_FORMULA = re.compile(r"'*(?![+-]\d+(\.\d*)?$)\s*[=+\-@\uff1d\uff0b\uff0d\uff20\t\r\n]")


def for_terminal(text: str) -> str:
    r"""Return the text with `\x1b` for an escape character and alike; only printable ones stay."""
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def listed(names: Sequence[str], most: int = 20, separator: str = ", ") -> str:
    """Return the first `most` names, safe for a terminal, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(map(for_terminal, names[:most])) + more


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as os.fsdecode returns it
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def for_csv(text: str) -> str:
    """Return the text as a CSV cell that no spreadsheet takes for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def from_csv(cell: str) -> str:
    """Return the text that `for_csv` wrote as this cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
