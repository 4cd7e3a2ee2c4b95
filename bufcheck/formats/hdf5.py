"""HDF5: one dataset per column under the root, the metadata in the root attribute `bufcheck`.

It is read in a child process (`_hdf5_child`): a damaged HDF5 file can crash or hang its reader.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from bufcheck import schema as experience
from bufcheck.errors import ReadError, WriteError
from bufcheck.format import NOT_VERIFIABLE, VERIFIED, Ranges, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.formats._hdf5_write import Writer

SUFFIXES = (".h5", ".hdf5")
STALL_SECONDS = 20
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def recognises(file: BinaryIO) -> bool:
    """Its signature stands at 0, or behind a user block of 512, 1024, 2048, … bytes."""
    size = file.seek(0, os.SEEK_END)
    at = 0
    while at + len(SIGNATURE) <= size:
        file.seek(at)
        if file.read(len(SIGNATURE)) == SIGNATURE:
            return True
        at = at * 2 or 512
    return False


def open_source(path: Path, names: Mapping[str, str] = MappingProxyType({})) -> Source:
    import pyarrow as pa

    from bufcheck.formats import _hdf5_server as server

    child = server.acquire()
    try:
        child.ask(path, _request(path, names), STALL_SECONDS)
        found = json.loads(child.answer(path, STALL_SECONDS)[1].to_pybytes())
    finally:
        server.release(child)
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(found["schema"])))
    lengths = dict(zip(schema.names, found["lengths"], strict=True))
    rows = min(lengths.values(), default=0)
    return Source(
        path=path,
        format="hdf5",
        schema=schema,
        rows=rows,
        metadata=None if found["metadata"] is None else base64.b64decode(found["metadata"]),
        read=partial(_read, path, names, schema),
        integrity=VERIFIED if found["verified"] else NOT_VERIFIABLE,
        uneven={name: length for name, length in lengths.items() if length > rows},
    )


def writer(path: Path, schema: pa.Schema, metadata: dict[str, Any]) -> Writer:
    try:
        from bufcheck.formats._hdf5_write import Writer
    except ImportError as error:
        raise WriteError(f"{path}: HDF5 needs h5py ({error})", "pip install h5py") from None
    return Writer(path, schema, metadata)


def _read(
    path: Path,
    names: Mapping[str, str],
    schema: pa.Schema,
    columns: list[str],
    ranges: Ranges | None,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from bufcheck.formats import _hdf5_server as server

    if not columns or ranges == []:
        return
    rows = None if ranges is None else [(int(start), int(stop)) for start, stop in ranges]
    child = server.acquire()
    try:
        child.ask(path, _request(path, names, columns=columns, ranges=rows), STALL_SECONDS)
        while (frame := child.answer(path, STALL_SECONDS))[0] == b"B":
            with pa.ipc.open_stream(frame[1]) as stream:
                batch = stream.read_next_batch()
            _same_types(path, schema, batch.schema)
            yield batch
    finally:
        server.release(child)  # left early, it would wait for ever with the rest of its answer


def _request(path: Path, names: Mapping[str, str], **more: Any) -> dict[str, Any]:
    ragged = [column.name for column in experience.load().columns.values() if column.is_ragged]
    return {
        "path": os.path.abspath(path),
        # A file may hold these padded, to be cut to the length that num_actions gives.
        "ragged": [names.get(name, name) for name in ragged],
        "lengths": names.get("num_actions", "num_actions"),
        # Long after the watchdog here would have acted: it works when this process is gone.
        "deadline": int(STALL_SECONDS) * 2 + 20,
        **more,
    }


def _same_types(path: Path, expected: pa.Schema, seen: pa.Schema) -> None:
    if any(field.type != expected.field(field.name).type for field in seen):
        raise ReadError(f"{path}: it was changed while it was read", "wait for its writer to end")
