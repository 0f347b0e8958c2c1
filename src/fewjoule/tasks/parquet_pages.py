"""What the pages of a Parquet file claim to unpack to. pyarrow takes that memory before it looks at a page.

A column chunk is pages in a row: a header in Thrift's compact protocol, whose fields 2 and 3 are the bytes of the page
unpacked and as it lies in the file, then the page.
"""

from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

UNPACKED, PACKED = 2, 3
BOOLEANS, BYTE, WHOLES, DOUBLE, TEXT, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12  # Thrift's types
MOST_FIELDS = 1000


def page_sizes(file: BinaryIO, metadata: Any, columns: Collection[str]) -> Iterator[int]:
    """The bytes that each page of these columns unpacks to, as its header says; ValueError where that is no header."""
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            chunk = row_group.column(index)
            if chunk.path_in_schema.partition(".")[0] not in columns:
                continue
            at = min(filter(None, (chunk.dictionary_page_offset, chunk.data_page_offset)))
            end = at + chunk.total_compressed_size
            while at < end:
                file.seek(at)
                sizes = _struct(file)
                if min(sizes.get(UNPACKED, -1), sizes.get(PACKED, -1)) < 0:
                    raise ValueError("a page does not say how long it is")
                yield sizes[UNPACKED]
                at = file.tell() + sizes[PACKED]


def _struct(file: BinaryIO, depth: int = 0) -> dict[int, int]:
    """Read a struct to its end; its whole numbers by their fields."""
    field, found = 0, dict[int, int]()
    for _ in range(MOST_FIELDS):
        first = _byte(file)
        if first == 0:
            return found
        field = field + (first >> 4) if first >> 4 else _whole(file)
        kind = first & 15
        if kind in WHOLES:
            found[field] = _whole(file)
        else:
            _skip(file, kind, depth + 1)
    raise ValueError("a page header has too many fields")


def _skip(file: BinaryIO, kind: int, depth: int, *, in_list: bool = False) -> None:
    if depth > 10:
        raise ValueError("a page header is nested too deeply")
    if kind in BOOLEANS:
        file.seek(in_list, 1)  # a field of this type is in its header
    elif kind in (BYTE, DOUBLE):
        file.seek(1 if kind == BYTE else 8, 1)
    elif kind in WHOLES:
        _whole(file)
    elif kind == TEXT:
        file.seek(_varint(file), 1)
    elif kind in LISTS:
        first = _byte(file)
        count = _varint(file) if first >> 4 == 15 else first >> 4
        for _ in range(min(count, MOST_FIELDS)):
            _skip(file, first & 15, depth + 1, in_list=True)
    elif kind == STRUCT:
        _struct(file, depth)
    else:
        raise ValueError("a page header has a field of an unknown type")


def _byte(file: BinaryIO) -> int:
    read = file.read(1)
    if not read:
        raise ValueError("a page header is cut off")
    return read[0]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number in a page header has no end")


def _whole(file: BinaryIO) -> int:
    value = _varint(file)
    return value >> 1 if value % 2 == 0 else -(value >> 1) - 1
