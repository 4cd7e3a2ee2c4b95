"""The views of a dump in the user's own process, for notebooks: `bufcheck.connect`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bufcheck import lazy
from bufcheck.views import Views

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from bufcheck.reading import Job


class Connection:
    """A DuckDB connection with the views of one dump. `sql` makes the views a query names.

    There is no box here: SQL can do what Python can. `duckdb` is the connection itself, to join with
    other tables.
    """

    def __init__(self, job: Job) -> None:
        import duckdb

        self._views = Views(job)
        self._schemas: dict[str, pa.Schema] = {}
        self.duckdb: duckdb.DuckDBPyConnection = duckdb.connect(":memory:")

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """The answer as a DuckDB relation: .df(), .pl(), .to_arrow_table(), .fetchall() …"""
        for name, schema in self._views.prepare(query).items():
            if self._schemas.get(name) != schema:
                self._schemas[name] = schema
                self.duckdb.register(name, lazy.dataset(schema, partial(self._views.read, name)))
        return self.duckdb.sql(query, params=parameters or None)

    @property
    def views(self) -> dict[str, str]:
        """Every view with what it holds."""
        return self._views.meanings

    def close(self) -> None:
        self.duckdb.close()
        self._views.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
