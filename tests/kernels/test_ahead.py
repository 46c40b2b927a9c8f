"""Protects the compilation ahead: what is not compiled is listed and not launched, and found afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
def test_missing_kernels_are_compiled_by_others(tmp_path: Path) -> None:
    """One that cannot be compiled is said and hinders no other."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.compiled_ahead"]
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"jobs": ["silu_mul_kernel", "silu_mul_kernel", "rms_norm_kernel"], "found": [1, 3, 3]}
    assert "was not compiled ahead: nothing" in done.stderr
