"""`python -m bufcheck` is `bufcheck`."""

from bufcheck.cli import main

main(prog_name="bufcheck")
