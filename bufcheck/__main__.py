"""`python -m bufcheck` is `bufcheck`."""

from bufcheck.cli import run

run()
