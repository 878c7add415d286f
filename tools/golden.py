"""Rewrite golden losses, with the reason why they may change.

python tools/golden.py "REASON" [ALGORITHM ...]
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fastssl.algorithms import ALGORITHMS
from tests.golden.losses import FOLDER, here, losses


def main() -> None:
    """Write one file an algorithm: date and reason, machine, then a loss a line."""
    if len(sys.argv) < 2:
        sys.exit('usage: python tools/golden.py "REASON" [ALGORITHM ...]')
    reason, names = sys.argv[1], sys.argv[2:] or list(ALGORITHMS)
    for name in names:
        lines = [f"# {time.strftime('%Y-%m-%d')} {reason}", f"# {here()}"]
        # In hexadecimal, so that a file holds every bit; the decimal form is for people.
        lines += [f"{k + 1} {x.hex()} {x:.6f}" for k, x in enumerate(losses(name))]
        (FOLDER / f"{name}.txt").write_text("\n".join(lines) + "\n")
        print(name)


if __name__ == "__main__":
    main()
