"""The house keeps its own rules: light import, a page in every room, short files, one version, an exact lock."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import setgrad

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "setgrad"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")

SOURCES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({path.parent for path in PACKAGE.glob("*/*.py")})

HEAVY = {"pyarrow", "rich", "sklearn", "matplotlib", "safetensors", "scipy", "pandas"}


def test_import_is_light() -> None:
    code = "import sys, setgrad; print(*{name.partition('.')[0] for name in sys.modules})"
    # -I: neither the user's site nor PYTHONPATH may add imports of their own
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("name", [name for name in dir(setgrad) if not name.startswith("_")])
def test_public_name_resolves(name: str) -> None:
    assert getattr(setgrad, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = setgrad.no_such_name


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_room_has_a_page_of_its_own(room: Path) -> None:
    page = room / "README.md"
    assert page.is_file(), f"{room.name} needs a README.md: what it holds, why, and how to add to it"
    lines = page.read_text(encoding="utf-8").splitlines()
    assert 3 <= len(lines) <= 80, f"{room.name}/README.md has {len(lines)} lines; one page is enough"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_is_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 400, f"{lines} lines: two files would be easier to read"


def test_one_version_everywhere() -> None:
    citation = re.search(r"^version: *(\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation is not None
    assert citation[1].strip("\"'") == PYPROJECT["project"]["version"] == setgrad.__version__
    assert f"## [{setgrad.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _pins() -> dict[str, str]:
    lines = [line for line in LOCK.splitlines() if line and not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    return {_canonical(name): version for name, version in pins.items()}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _requirements() -> list[str]:
    project = PYPROJECT["project"]
    # The rivals of a benchmark are not part of the development environment.
    optional = {name: lines for name, lines in project["optional-dependencies"].items() if name != "bench"}
    extras = [line for lines in optional.values() for line in lines]
    groups = [line for lines in PYPROJECT["dependency-groups"].values() for line in lines]
    return sorted({*project["dependencies"], *extras, *groups, *PYPROJECT["build-system"]["requires"]})


@pytest.mark.parametrize("line", _requirements())
def test_lock_pins_a_version_in_the_declared_range(line: str) -> None:
    requirement = Requirement(line)
    version = _pins().get(_canonical(requirement.name))
    assert version is not None, f"requirements.lock lacks {requirement.name}"
    assert version in requirement.specifier


def test_lock_names_no_host_and_no_local_build() -> None:
    assert "://" not in LOCK
    assert not any("+" in version for version in _pins().values())
