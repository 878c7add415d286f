"""`python -m fastssl` is the command `fastssl`."""

from fastssl.cli.command import main

main()
