"""bufcheck: check a stored on-policy buffer before anyone trains on it again.

    import bufcheck
    report = bufcheck.validate("dump.parquet")
    report["verdict"]

This file is the public API; everything else may move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bufcheck.errors import (
    BufcheckError,
    ConfigError,
    ReadError,
    SchemaError,
    UsageError,
    WriteError,
)

if TYPE_CHECKING:
    from bufcheck.dump import Dump

__version__ = "0.1.0"
__all__ = [
    "BufcheckError",
    "ConfigError",
    "ReadError",
    "SchemaError",
    "UsageError",
    "WriteError",
    "open_dump",
    "validate",
]


def validate(*paths: str, **options: Any) -> dict[str, Any]:
    """Check a dump (files, globs, folders) and return the report as a dict.

    Options are those of `bufcheck validate`: select, ignore, rules, tolerance, sample, baseline,
    findings, and config (the path of a bufcheck.toml).
    """
    from pathlib import Path

    from bufcheck import config as configuration
    from bufcheck import pipeline

    for name in ("rules", "baseline", "findings", "config"):
        if options.get(name) is not None:
            options[name] = Path(options[name])
    if (path := options.pop("config", None)) is not None:
        options["config"] = configuration.load(path)
    return pipeline.validate([str(path) for path in paths], pipeline.Options(**options))


def open_dump(*paths: str) -> Dump:
    """Open a dump; `batches(columns)` on it streams Arrow record batches with stable row ids."""
    from bufcheck.dump import open_dump

    return open_dump([str(path) for path in paths])
