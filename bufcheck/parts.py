"""The files of one BufferWriter: one that gets its name at the end, or a folder of numbered parts.

Each part says which it is and whether it is the last, so that a dump whose writer was killed, or of
which some files were not copied, is known for what it is (`truncated-dump`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bufcheck import format as formats
from bufcheck.errors import UsageError, WriteError
from bufcheck.whole_file import UNFINISHED, refuse, whole_file

if TYPE_CHECKING:
    import pyarrow as pa

    from bufcheck.format import Writer

PART_ROWS = 1 << 17


class Parts:
    """The files of one writer, one after the other."""

    def __init__(
        self, path: Path, worker: int | None, suffix: str, most: int, metadata: dict[str, Any]
    ) -> None:
        self.is_folder = not formats.has_known_suffix(path)
        if worker is not None and (
            isinstance(worker, bool) or not isinstance(worker, int) or worker < 0
        ):
            raise UsageError(f"worker is {worker!r}", "number the workers from 0")
        if worker is not None and not self.is_folder:
            raise UsageError(
                f"{path}: is one file, and one of several workers writes it", "name a folder"
            )
        self.suffix = suffix if self.is_folder else path.suffix
        self.path, self.form, self.metadata = path, formats.of_suffix(Path(f"x{self.suffix}")), metadata
        self.most = most if self.is_folder else None
        self.stem = "part" if worker is None else f"worker-{worker}"
        self.number = 0
        self._make_room()
        self._open()

    def _make_room(self) -> None:
        try:
            folder = self.path if self.is_folder else self.path.parent
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WriteError(f"{self.path}: {error.strerror or error}", "write elsewhere") from None
        if self.is_folder and (there := sorted(folder.glob(f"{self.stem}-[0-9]*"))):
            raise UsageError(
                f"{there[0]}: is there already", "choose a new folder, or another worker number"
            )
        refuse([self.name])

    @property
    def name(self) -> Path:
        if not self.is_folder:
            return self.path
        return self.path / f"{self.stem}-{self.number:05d}{self.suffix}"

    def _open(self) -> None:
        """The file is there from the beginning, under a name that says it is unfinished."""
        self._whole = contextlib.ExitStack()
        self._temporary = self._whole.enter_context(whole_file(self.name, prefix=UNFINISHED))
        self._file: Writer | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if self._file is not None and self.most is not None and self._file.rows >= self.most:
            self._finish(last=False)
            self.number += 1
            self._open()
        if self._file is None:
            self._file = formats.writer(self.form, self._temporary, batch.schema, dict(self.metadata))
        try:
            self._file.append(batch)
        except (OSError, pa.ArrowException, WriteError) as error:
            self._give_up()
            why = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise WriteError(
                f"{self.name}: {why}", "this part is lost, those before it are not"
            ) from None

    def _give_up(self) -> None:
        """What cannot be written on is taken away; it was the last part."""
        file, self._file = self._file, None
        with contextlib.suppress(Exception), self._whole:
            if file is not None:
                file.__exit__(_UnnamedError)
            raise _UnnamedError

    def close(self, *, whole: bool) -> None:
        if self._file is None:  # no rows: there is nothing to publish
            self._give_up()
        else:
            self._finish(last=whole)

    def _finish(self, *, last: bool) -> None:
        """Described, closed, read again, and only then named."""
        file = self._file
        assert file is not None
        with self._whole:
            with file:
                if self.is_folder or not last:
                    part = {"writer": self.stem, "number": self.number, "last": last}
                    file.metadata = file.metadata | {"part": part}
            formats.verify(self._temporary, file.rows)


class _UnnamedError(Exception):
    """Leaves a block without giving its file a name."""
