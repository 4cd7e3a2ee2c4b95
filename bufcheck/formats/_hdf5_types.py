"""Arrow types as text: how HDF5 objects remember the type of the column they hold.

HDF5 knows numbers, booleans and strings. Whether a ragged column was a `list` or a `large_list`,
or a string column dictionary-encoded, is kept in the attribute `arrow_type`.
"""

from __future__ import annotations

import re

import pyarrow as pa

NUMBERS = {
    str(kind): kind
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_()),
    )
}
TEXTS = {str(kind): kind for kind in (pa.string(), pa.large_string())}

_LIST = re.compile(
    r"(list|large_list|fixed_size_list)<(.*): (\w+)( not null)?>(?:\[(\d{1,9})\])?", re.DOTALL
)
_DICTIONARY = re.compile(r"dictionary<values=(\w+), indices=(u?int\d+), ordered=0>")


def parse(text: str) -> pa.DataType | None:
    """The type whose str() this is, if it is one that HDF5 has a shape for."""
    simple = NUMBERS.get(text) or TEXTS.get(text)
    if simple is not None:
        return simple
    if found := _DICTIONARY.fullmatch(text):
        values, indices = TEXTS.get(found[1]), NUMBERS.get(found[2])
        return pa.dictionary(indices, values) if values and indices else None
    if not (found := _LIST.fullmatch(text)) or found[3] not in NUMBERS:
        return None
    item = pa.field(found[2], NUMBERS[found[3]], nullable=found[4] is None)
    if found[1] == "fixed_size_list":
        return pa.list_(item, int(found[5])) if found[5] else None
    return pa.list_(item) if found[1] == "list" else pa.large_list(item)


def has_shape(kind: pa.DataType) -> bool:
    """Whether a column of this type survives as plain HDF5 datasets, to the last detail."""
    if pa.types.is_fixed_size_list(kind) and kind.list_size == 0:
        return False
    parsed = parse(str(kind))
    return parsed is not None and bool(parsed.equals(kind, check_metadata=True))


def is_text(kind: pa.DataType) -> bool:
    return kind in TEXTS.values() or pa.types.is_dictionary(kind)


def is_ragged(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def list_if_it_fits(declared: pa.DataType | None, natural: pa.DataType) -> pa.DataType:
    """`declared`, unless what is stored has other items or another width."""
    if declared is None or not pa.types.is_nested(declared) or pa.types.is_dictionary(declared):
        return natural
    if declared.value_type != natural.value_type or is_ragged(declared) != is_ragged(natural):
        return natural
    if not is_ragged(natural) and declared.list_size != natural.list_size:
        return natural
    return declared


def text_if_it_fits(declared: pa.DataType | None, natural: pa.DataType, entries: int) -> pa.DataType:
    """`declared`, unless it is no text, or its codes cannot count the dictionary's entries."""
    if declared is None or not is_text(declared):
        return natural
    if pa.types.is_dictionary(declared):
        width = declared.index_type.bit_width - pa.types.is_signed_integer(declared.index_type)
        if entries > 2**width:
            return pa.dictionary(pa.int32(), declared.value_type)
    return declared
