"""Protects the making of the kernel library: made once, damaged and wrong ones never used, no fault fatal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.kernels.cpu.build import FLAGS, built
from ridgeline.kernels.cpu.native import load

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "ridgeline" / "kernels" / "cpu" / "src"
QUICK = (*FLAGS, "-O0")  # compiles in a fifth of the time


@pytest.fixture(scope="module")
def made(cc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library, made once for the tests that copy its folder."""
    return built([cc], tmp_path_factory.mktemp("made"), QUICK)


def copying(cc: str, made: Path, folder: Path) -> str:
    """A compiler that is the real one by its word and takes no time: it gives out what was made before."""
    script = folder / "copying-cc"
    script.write_text(f"""#!/bin/sh
case "$*" in *--version) exec {cc} --version;; esac
while [ "$1" != -o ]; do shift; done
echo made >> '{folder}/log'; sleep 0.3; cp {made} "$2"
""")
    script.chmod(0o755)
    return str(script)


def test_made_once(cc: str, made: Path, tmp_path: Path) -> None:
    """The second start takes what the first one made, and nothing else is left in the folder."""
    copy, folder = copying(cc, made, tmp_path), tmp_path / "kernels"
    first, second = built([copy], folder, QUICK), built([copy], folder, QUICK)
    assert first == second and list(folder.iterdir()) == [first]
    assert (tmp_path / "log").read_text() == "made\n"
    assert load(first).isa in ("scalar", "AVX2", "AVX-512 VNNI")


def test_flags_and_compilers_do_not_mix(cc: str, made: Path, tmp_path: Path) -> None:
    """A library is asked for by all that it was made from."""
    copy, folder = copying(cc, made, tmp_path), tmp_path / "kernels"
    assert built([copy], folder, QUICK) != built([copy], folder, (*QUICK, "-DOTHER"))


@pytest.mark.parametrize("damage", ["cut short", "one bit", "foreign"])
def test_a_damaged_library_is_never_loaded(cc: str, made: Path, tmp_path: Path, damage: str,
                                           caplog: pytest.LogCaptureFixture) -> None:
    """Loading one could end the process; it is seen by its content and made again."""
    copy, folder, good = copying(cc, made, tmp_path), tmp_path / "kernels", made.read_bytes()
    kept = built([copy], folder, QUICK)
    bad = {"cut short": good[:-100], "one bit": good[:5000] + bytes([good[5000] ^ 1]) + good[5001:],
           "foreign": b"not a library"}[damage]
    kept.write_bytes(bad)
    assert built([copy], folder, QUICK) == kept and kept.read_bytes() == good and "damaged" in caplog.text
    assert list(folder.iterdir()) == [kept]


def test_what_is_old_goes(cc: str, made: Path, tmp_path: Path) -> None:
    """Libraries of other sources that nothing has used for a day are removed when one is made; what is young,
    of the same key, in use or not ours stays."""
    copy, folder, day = copying(cc, made, tmp_path), tmp_path / "kernels", 86_400
    used, unused = (built([copy], folder, (*QUICK, flag)) for flag in ("-DUSED", "-DUNUSED"))
    key = built([copy], folder, QUICK).name.split("-")[1]
    old = [unused, *(folder / name for name in ("cpu-ab-cd.so", "cpu-ab.refused", "cpu-work-x/out.so"))]
    kept = [folder / name for name in ("cpu-new-cd.so", f"cpu-{key}-cd.so", "notes.so")]
    (folder / "cpu-work-x").mkdir()
    for path in (*old[1:], *kept):
        path.write_bytes(b"")
    for path in (*old, old[-1].parent, used, kept[1], kept[2]):
        os.utime(path, (time.time() - 2 * day,) * 2)
    assert built([copy], folder, (*QUICK, "-DUSED")) == used  # found, not made: nothing goes yet
    assert all(path.exists() for path in old)
    next(folder.glob(f"cpu-{key}-*[!d].so")).unlink()
    again = built([copy], folder, QUICK)
    assert set(folder.iterdir()) == {used, again, *(path for path in kept if path != kept[1])}


def spoiling(cc: str, folder: Path, function: str, statement: str) -> str:
    """A compiler that puts a statement at the start of a function."""
    script = folder / "spoiling-cc"
    script.write_text(f"""#!/bin/sh
[ "$1" = --version ] || sed -i 's/^void {function}(.*{{$/& {statement};/' *.c
exec {cc} "$@"
""")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(("function", "statement", "reason"), [
    ("rl_multiply", "return", "product"), ("rl_attend", "return", "attention"),
    ("rl_rows", "__builtin_trap()", f"status -{signal.SIGILL:d}")])
def test_a_library_that_computes_wrongly_is_refused(cc: str, tmp_path: Path, function: str, statement: str,
                                                    reason: str) -> None:
    """Wrong numbers are seen, an illegal instruction ends the trial's process only, the verdict is kept."""
    (folder := tmp_path / "kernels").mkdir()
    bad = spoiling(cc, tmp_path, function, statement)
    with pytest.raises(ConfigError, match=f"failed their check on this machine .*{reason}"):
        built([bad], folder, QUICK)
    (verdict,) = folder.iterdir()
    with pytest.raises(ConfigError, match=f"failed .*{reason}.*; remove {verdict} to try again"):
        built([bad], folder, QUICK)
    assert list(folder.iterdir()) == [verdict]


def test_a_compiler_that_fails(tmp_path: Path) -> None:
    """What it said is in the error, and nothing is left behind."""
    script = tmp_path / "broken-cc"
    script.write_text("#!/bin/sh\n[ $1 = --version ] || { echo no such target >&2; exit 1; }\n")
    script.chmod(0o755)
    with pytest.raises(ConfigError, match="broken-cc failed: no such target"):
        built([str(script)], tmp_path / "kernels", QUICK)
    assert not list((tmp_path / "kernels").iterdir())


def test_two_processes_at_once(cc: str, made: Path, tmp_path: Path) -> None:
    """Both make one, both get the same, and one remains."""
    copy, folder = copying(cc, made, tmp_path), tmp_path / "kernels"
    script = "import sys; from pathlib import Path; from ridgeline.kernels.cpu.build import built; "
    script += "print(built([sys.argv[1]], Path(sys.argv[2]), sys.argv[3:]))"
    both = [subprocess.Popen([sys.executable, "-c", script, copy, str(folder), *QUICK], text=True, cwd=ROOT,
                             stdout=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=100)[0].strip() for process in both]
    (kept,) = folder.iterdir()
    assert said == [str(kept)] * 2


def find(tmp_path: Path, **environment: str) -> tuple[str, str]:
    """What a fresh process says of its kernels: (why there are none, the log)."""
    script = ("from ridgeline.kernels.cpu.native import native, why_none; native(); print(why_none()); "
              "assert (native() is None) == bool(why_none())")
    kept = {name: value for name, value in os.environ.items() if name != "CC"}
    kept |= {"RIDGELINE_CACHE": str(tmp_path / "cache"), **environment}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=kept,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def test_without_a_compiler(tmp_path: Path) -> None:
    """Said once, with what to install."""
    why, log = find(tmp_path, PATH=str(tmp_path))
    assert why == "no C compiler for the packed kernels: install gcc or clang for speed"
    assert log.count("no C compiler") == 1 and "float32" in log


def test_a_cc_that_is_not_there(tmp_path: Path) -> None:
    """$CC comes first, so a wrong one is named, not passed over."""
    why, log = find(tmp_path, CC=str(tmp_path / "no-such-cc"))
    assert "no-such-cc" in why and log.count("no-such-cc") == 1


def test_a_cc_with_arguments(cc: str, made: Path, tmp_path: Path) -> None:
    """$CC is a command, as make reads it: arguments and quoted blanks; they are part of what a library is."""
    (folder := tmp_path / "a folder").mkdir()
    copy = copying(cc, made, folder)
    assert find(tmp_path, CC=f"'{copy}' -m64") == ("", "")
    (first,) = (tmp_path / "cache" / "kernels").iterdir()
    assert find(tmp_path, CC=f"'{copy}'") == ("", "")
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 2 and first.exists()
    why, log = find(tmp_path, CC="gcc '-m64")
    assert "CC=\"gcc '-m64\" is no command (No closing quotation)" in why and log.count("is no command") == 1


def test_a_folder_that_cannot_be_written(cc: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    why, log = find(tmp_path, CC=cc)
    assert str(tmp_path / "cache") in why and log.count(str(tmp_path / "cache")) == 1


def test_the_code_for_vnni_compiles(cc: str, tmp_path: Path) -> None:
    """Few machines can run it; every one can see that it builds without a warning."""
    asked = [cc, "-march=icelake-server", "-E", "-dM", "-x", "c", os.devnull]
    known = subprocess.run(asked, capture_output=True, text=True)
    if known.returncode:
        pytest.skip("this compiler does not know the instruction set")
    assert "__AVX512VNNI__" in known.stdout
    command = [cc, *FLAGS, "-march=icelake-server", "-O1", "-Wall", "-Wextra", "-Werror", "-c", "linear.c"]
    command += ["-o", str(tmp_path / "linear.o")]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
