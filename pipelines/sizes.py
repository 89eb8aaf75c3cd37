"""Bytes of each row of an Arrow table, from its values alone. Called to cut row groups and shards.

Arrow's own `nbytes` depends on how a table was put together (slices, validity buffers); this does not.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Sizes = npt.NDArray[np.int64]


def row_bytes(table: pa.Table | pa.RecordBatch) -> Sizes:
    """Uncompressed Arrow bytes of each row, shape (rows,): values and 4 bytes per offset, no validity bits.

    A bool counts as one byte.
    """
    total = np.zeros(len(table), dtype=np.int64)
    for column in table.columns:
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        if len(table):
            total += np.concatenate([_sizes(chunk) for chunk in chunks])
    return total


def _sizes(array: pa.Array) -> Sizes:
    kind = array.type
    if pa.types.is_struct(kind):
        fields = [_sizes(array.field(i)) for i in range(kind.num_fields)]
        return _where_valid(array, np.asarray(np.sum(fields, axis=0), dtype=np.int64))
    if pa.types.is_list(kind):
        offsets = array.offsets.to_numpy()
        # Only the values of this slice: `values` is the whole child, whatever the slice.
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0]) if len(array) else array.values[:0]
        below = np.concatenate([[0], np.cumsum(_sizes(values))])
        offsets = offsets - offsets[0]
        return _where_valid(array, below[offsets[1:]] - below[offsets[:-1]]) + 4
    if pa.types.is_string(kind):
        return np.asarray(pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64) + 4
    width = 1 if pa.types.is_boolean(kind) else kind.bit_width // 8
    return np.full(len(array), width, dtype=np.int64)


def _where_valid(array: pa.Array, sizes: Sizes) -> Sizes:
    """What lies beneath a null is not a value."""
    if not array.null_count:
        return sizes
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
