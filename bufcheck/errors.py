"""Every exception bufcheck raises on purpose.

BufcheckError            the command could not do its work: one line on stderr, exit 2
├── UsageError           the request makes no sense (an unknown rule, two outputs of one name)
│   └── SampleError      what a trainer hands over is not a sample: which column, which row
├── ConfigError          bufcheck.toml or a rule file says something that cannot be meant
├── ReadError            a file cannot be read: damaged, cut off, foreign, refused
│   ├── SchemaError      it can be read, but its metadata is not a contract we know
│   ├── NoDumpError      it can be read, but holds no experience that we know; another tool's, maybe
│   └── ForeignError     an importer cannot make a dump of it
├── QueryError           SQL that was refused, failed, or took too much
└── WriteError           an output could not be written; nothing is left behind

What is wrong *with stored experience* is never an exception: it is a finding.
"""

from __future__ import annotations


class BufcheckError(Exception):
    """The command could not do its work. `step` is what the user can do next."""

    def __init__(self, problem: str, step: str = "") -> None:
        self.problem = problem
        self.step = step
        super().__init__(f"{problem}; {step}" if step else problem)


class UsageError(BufcheckError): ...


class SampleError(UsageError): ...


class ConfigError(BufcheckError): ...


class ReadError(BufcheckError): ...


class SchemaError(ReadError): ...


class NoDumpError(ReadError): ...


class ForeignError(ReadError): ...


class QueryError(BufcheckError): ...


class WriteError(BufcheckError): ...
