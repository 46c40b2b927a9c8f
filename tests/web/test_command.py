"""Protects `ridgeline labs`: no model, no torch, and a taken address is one line."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from ridgeline.cli import main


def test_the_command_serves_the_labs_until_it_is_interrupted() -> None:
    script = "import sys; from ridgeline.cli import main; code = main(['labs', '--port', '0']); "
    script += "print('torch' in sys.modules); sys.exit(code)"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.fullmatch(r"labs on (http://127\.0\.0\.1:\d+/labs)\n", process.stdout.readline())
        assert found, process.stderr
        with urllib.request.urlopen(f"{found[1]}/api/kv-cache?context=4096", timeout=20) as answer:
            assert json.load(answer)["state"]["context"] == 4096
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130 and out == "False\n" and err == ""
    finally:
        process.kill()


def test_a_taken_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["labs", "--port", str(taken.getsockname()[1])]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ridgeline labs: error: cannot use 127.0.0.1") and said.count("\n") == 1
