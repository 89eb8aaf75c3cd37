"""The doctor's exit status says what its lines say."""

import subprocess
import sys
from pathlib import Path

from pipelines import doctor
from pipelines.doctor import Finding

ROOT = Path(__file__).resolve().parents[2]


def test_the_exit_status_follows_the_findings() -> None:
    found = doctor.findings()
    assert {"python", "memory", "packages", "extra: engine", "model weights"} <= {f.what for f in found}
    assert any(f.what.startswith("sandbox") for f in found)
    if any(f.what == "sandbox: sandbox" and f.state == "ok" for f in found):
        assert doctor.MEMORY_LIMIT in {f.what for f in found}
    command = [sys.executable, "-m", "pipelines.cli", "doctor"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == int(any(f.state == "missing" for f in found))
    assert "Traceback" not in done.stderr


def test_a_version_is_null_for_what_is_absent() -> None:
    assert doctor._version("pydantic")
    assert doctor._version("no-such-distribution") is None


def test_the_last_line_names_the_setting_that_is_all_a_host_needs() -> None:
    fine, limit = Finding("python", "ok", ""), Finding("sandbox: memory limit", "missing", "")
    assert doctor.verdict([fine]) == "The default run can work here."
    needs = doctor.verdict([fine, limit])
    assert "--config data/demo.yaml" in needs
    assert "sandbox.accept_process_memory_limit" in needs
    assert "cannot work" in doctor.verdict([limit, Finding("model weights", "missing", "")])
