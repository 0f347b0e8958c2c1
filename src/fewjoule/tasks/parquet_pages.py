"""What the pages of a Parquet file claim to unpack to. pyarrow takes that memory before it looks at a page.

The file ends with its metadata, their length and "PAR1"; they say where each column's chunks begin. A chunk is pages in
a row: a header, then the page. Metadata and headers are structs of Thrift's compact protocol. pyarrow shows them too,
but ends the process where they are damaged.
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

TRUE, FALSE, BYTE, WHOLES, DOUBLE, TEXT, LISTS, STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12  # Thrift's types
ROW_GROUPS, COLUMNS, COLUMN = 4, 1, 3  # fields of the metadata, of a row group, of a chunk
NAME, PACKED_CHUNK, DATA_OFFSET, DICTIONARY_OFFSET = 3, 7, 9, 11  # of a column
UNPACKED, PACKED = 2, 3  # of a page header
LONGEST_HEADER = 2**16
DEEPEST = 20


def page_sizes(path: Path, columns: Collection[str]) -> Iterator[int]:
    """The bytes that each page of these columns unpacks to, as its header says; ValueError where that is no header."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        metadata = _Thrift(file.read(length)).struct()
        for column in _columns(metadata):
            if column[NAME][0].decode() not in columns:
                continue
            at = min(offset for offset in (column.get(DICTIONARY_OFFSET), column[DATA_OFFSET]) if offset)
            end = at + column[PACKED_CHUNK]
            while 0 <= at < end:
                file.seek(at)
                header = _Thrift(file.read(LONGEST_HEADER))
                page = header.struct()
                if min(page[UNPACKED], page[PACKED]) < 0:
                    raise ValueError("a page is shorter than nothing")
                yield page[UNPACKED]
                at += header.at + page[PACKED]


def _columns(metadata: dict[int, Any]) -> list[dict[int, Any]]:
    try:
        found = [chunk[COLUMN] for group in metadata[ROW_GROUPS] for chunk in group[COLUMNS]]
        for column in found:
            int(column[PACKED_CHUNK]), int(column[DATA_OFFSET]), bytes(column[NAME][0])
        return found
    except (KeyError, IndexError, TypeError):
        raise ValueError("the metadata do not say where the columns are") from None


class _Thrift:
    """A struct of Thrift's compact protocol, read from `at` on: values by the numbers of their fields."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        field, found = 0, dict[int, Any]()
        while (first := self._byte()) != 0:
            field = field + (first >> 4) if first >> 4 else self._whole()
            kind = first & 15
            # a truth stands in its own header
            found[field] = kind == TRUE if kind in (TRUE, FALSE) else self._value(kind, depth + 1)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("a header is nested too deeply")
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        if kind in WHOLES:
            return self._whole()
        if kind in (DOUBLE, TEXT):
            return self._take(8 if kind == DOUBLE else self._varint())
        if kind in LISTS:
            first = self._byte()
            count = self._varint() if first >> 4 == 15 else first >> 4
            if count > len(self.data):
                raise ValueError("a list in a header is longer than the file")
            return [self._value(first & 15, depth + 1) for _ in range(count)]
        if kind == STRUCT:
            return self.struct(depth)
        raise ValueError("a header has a field of an unknown type")

    def _take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        self.at += size
        if self.at > len(self.data):
            raise ValueError("a header is cut off")
        return taken

    def _byte(self) -> int:
        return self._take(1)[0]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in a header has no end")

    def _whole(self) -> int:
        value = self._varint()
        return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
