"""`python -m fastssl` is the command `fastssl`."""

from fastssl.cli import main

main()
