"""Protects the size of the house and two of its habits, by reading the source."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ridgeline"
MAX_ROOM_LINES = 5_000  # docs/adr/0011-size-by-room.md
MAX_PACKAGE_LINES = 60_000  # docs/adr/0013-api.md
MAX_FILE_LINES = 400
MAX_KERNEL_LINES = 600
MAX_FUNCTION_LINES = 60
SUFFIXES = {".py", ".c", ".cpp", ".cu", ".h", ".js", ".html", ".css"}


def _sources() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*") if p.suffix in SUFFIXES and "__pycache__" not in p.parts)


def _num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _limit(path: Path) -> int:
    kernel = path.name == "triton.py" or "kernels" in path.relative_to(PACKAGE).parts
    return MAX_KERNEL_LINES if kernel else MAX_FILE_LINES


def _trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in _sources():
        if path.suffix == ".py":
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_files_and_package_stay_small() -> None:
    """A file that outgrows its limit holds two things; so does a room. The package must stay readable."""
    sizes = {p: _num_lines(p) for p in _sources()}
    too_long = [f"{p.relative_to(ROOT)}: {n} lines, {_limit(p)} allowed"
                for p, n in sizes.items() if n > _limit(p)]
    assert not too_long, "\n".join(too_long)
    rooms: Counter[str] = Counter()
    for path, lines in sizes.items():
        rooms[path.relative_to(PACKAGE).parts[0]] += lines
    room, lines = rooms.most_common(1)[0]
    assert lines <= MAX_ROOM_LINES, f"{room}: {lines} lines"
    assert sum(sizes.values()) <= MAX_PACKAGE_LINES


def test_functions_stay_small() -> None:
    """The docstring does not count."""
    too_long = []
    for path, tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            length = (node.end_lineno or 0) - first.lineno + 1
            if length > MAX_FUNCTION_LINES:
                too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {length} lines")
    assert not too_long, "\n".join(too_long)


def test_every_module_says_what_it_owns() -> None:
    bare = [str(p.relative_to(ROOT)) for p, tree in _trees() if tree.body and not ast.get_docstring(tree)]
    assert not bare, bare


def test_only_base_config_reads_the_environment() -> None:
    """A hidden switch is a setting that no flag shows and no trace records."""
    readers = []
    for path, tree in _trees():
        if path == PACKAGE / "base" / "config.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv"):
                readers.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not readers, readers


def test_no_function_rebinds_a_module_name() -> None:
    """Module-level state is what makes two engines in one process, or two tests, disturb each other."""
    found = [f"{p.relative_to(ROOT)}:{n.lineno}" for p, tree in _trees() for n in ast.walk(tree)
             if isinstance(n, ast.Global)]
    assert not found, found


def test_make_gpu_collects_every_room_with_tests_for_a_gpu() -> None:
    marked = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")
              if re.search(r"ONLY_GPU|on_gpu\(|mark\.gpu", path.read_text(encoding="utf-8"))}
    (line,) = re.findall(r"^GPU_TESTS := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert marked - {"tests/contracts"} == set(line.split())
