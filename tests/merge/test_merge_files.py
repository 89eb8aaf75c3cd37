"""Damaged and hostile checkpoint files are refused before anything is written."""

import json
from pathlib import Path

import pytest
from checkpoint_factory import save, tensors
from hypothesis import given
from hypothesis import strategies as st

from pipelines.merge.checkpoint import read_checkpoint
from pipelines.merge.tensors import header_bytes, read_header
from schemas.errors import MergeError


def file_of(tmp_path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        ({"a": entry()}, 7, "cut short"),
        ({"a": entry()}, 9, "overlong"),
        ({"a": entry("F99")}, 8, "unknown dtype"),
        ({"a": entry(shape=[3])}, 8, "does not fit"),
        ({"a": entry(shape=[-2], offsets=[8, 0])}, 8, "no natural numbers"),
        ({"a": entry(shape=[2.0])}, 8, "no natural numbers"),
        ({"a": entry(), "b": entry()}, 16, "starts at byte"),
        ({"a": entry(offsets=[8, 16])}, 16, "starts at byte"),
        ({"a": {"dtype": "F32"}}, 8, "not a readable"),
        (["a"], 8, "not a readable"),
        (b"{", 0, "not a readable"),
    ],
)
def test_inconsistent_headers_are_refused(tmp_path: Path, header: object, size: int, words: str) -> None:
    with pytest.raises(MergeError, match=words):
        read_header(file_of(tmp_path, header, bytes(size)))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(data)
    try:
        assert isinstance(read_header(path), dict)
    except MergeError as error:
        assert str(path) in str(error)


def test_a_header_comes_back(tmp_path: Path) -> None:
    entries = {"b": ("F32", (2, 3)), "a": ("BF16", ()), "empty": ("F16", (0, 4))}
    path = tmp_path / "x"
    path.write_bytes(header_bytes(entries) + bytes(26))
    found = read_header(path)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == entries
    assert [t.size for t in found.values()] == [24, 2, 0]


def test_an_index_must_agree_with_its_files(tmp_path: Path) -> None:
    folder = save(tmp_path / "a", tensors(0), shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = min(index["weight_map"])
    for weight_map, words in [
        (index["weight_map"] | {first: "../a/model.safetensors"}, "there is no file"),
        (index["weight_map"] | {"ghost": index["weight_map"][first]}, "the index has ghost"),
        ({n: f for n, f in index["weight_map"].items() if n != first}, "the index has .* None"),
        (None, "no weight_map"),
    ]:
        path.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(MergeError, match=words):
            read_checkpoint(folder)
