"""For the tests of a trainer: `assert_clean(dump, actors)` fails with the report, as people read it."""

from __future__ import annotations

from os import PathLike
from typing import Any


def assert_clean(
    dump: str | PathLike[str], actors: Any = None, *, warnings: bool = False, **options: Any
) -> dict[str, Any]:
    """Fail unless the dump passes; returns the report.

    With `actors` (what `bufcheck.replay` takes) the verdict must be `pass`; without, no error may be
    found. `warnings=True` lets no warning pass either. Other options are those of `bufcheck.validate`.
    """
    import click

    import bufcheck
    from bufcheck import output

    if actors is not None:
        options["actor"] = actors
    report = bufcheck.validate(str(dump), **options)
    wanted = ("pass",) if actors is not None else ("pass", "unverified")
    if report["verdict"] not in wanted or (warnings and report["summary"]["warnings"]):
        raise AssertionError("\n" + click.unstyle(output.render(report, "text")))
    return report
