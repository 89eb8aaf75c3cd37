"""One file per log format, detected by shape.

A reader is a module with `NAME`, `matches(value) -> bool` (is this JSON value, maybe cut short, of my format?) and
`read(values) -> Iterator[Draft | Problem]`; it is listed in `detect.READERS`. `common` has what readers share.
"""

from pipelines.readers.detect import READERS, detect, read_file
from pipelines.readers.files import input_files, partner_of

__all__ = ["READERS", "detect", "input_files", "partner_of", "read_file"]
