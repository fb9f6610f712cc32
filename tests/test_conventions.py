"""Conventions of the project: light import, typed and unique public names, short files, one version, an exact lock."""

import importlib
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import setgrad

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "setgrad"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PUBLIC_NAMES = (Path(__file__).parent / "public_names.txt").read_text(encoding="utf-8").split()

PACKAGES = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
HEAVY = {"pyarrow", "rich", "sklearn", "matplotlib", "safetensors", "scipy", "pandas"}


def test_import_is_light() -> None:
    code = "import sys, setgrad; setgrad.SubsetSelector; print(*{name.partition('.')[0] for name in sys.modules})"
    # -I: neither the user's site nor PYTHONPATH may add imports.
    result = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "torch" in loaded
    assert not loaded & HEAVY


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = setgrad.no_such_name  # type: ignore[attr-defined]


def _exports() -> dict[str, list[str]]:
    """Public names by package: those that `__init__.py` imports as themselves or assigns."""
    found = {"": sorted(setgrad.__all__)}
    for package in PACKAGES:
        text = (PACKAGE / package / "__init__.py").read_text(encoding="utf-8")
        names = set(re.findall(r"\bimport (\w+) as \1\b", text)) | set(
            re.findall(r"^([A-Z][A-Z_]+)\b.* = ", text, re.M)
        )
        found[package] = sorted(names)
    return found


def test_public_names_are_those_of_the_list() -> None:
    """A new or removed name is a change of the interface: edit tests/public_names.txt and tell it in CHANGELOG.md."""
    names = [f"{package}.{name}".lstrip(".") for package, exported in _exports().items() for name in exported]
    assert names == PUBLIC_NAMES


def test_public_names_resolve() -> None:
    for name in PUBLIC_NAMES:
        package, _, attribute = name.rpartition(".")
        module = importlib.import_module(f"setgrad.{package}".rstrip("."))
        assert getattr(module, attribute) is not None, name


def test_no_name_means_two_things() -> None:
    meanings: dict[str, list[tuple[object, str]]] = defaultdict(list)
    for package, exported in _exports().items():
        module = importlib.import_module(f"setgrad.{package}".rstrip("."))
        for name in exported:
            found = getattr(module, name)
            if not any(found is other for other, _ in meanings[name]):
                meanings[name].append((found, package))
    twice = {name: [package for _, package in found] for name, found in meanings.items() if len(found) > 1}
    assert not twice


def test_a_type_checker_knows_the_top_level(tmp_path: Path) -> None:
    script = tmp_path / "use.py"
    script.write_text(
        "import setgrad as sg\nreveal_type(sg.SubsetSelector)\nsg.no_such_thing\nsg.discrete.no_such_thing\n"
        "sg.SubsetSelector(no_such_option=1)\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert re.search(
        r'use.py:2: note: Revealed type is "def \(.*\) -> setgrad\.selector\.\w+\.SubsetSelector"', result.stdout
    )
    errors = re.findall(r"use.py:(\d): error: .*\[([a-z-]+)\]", result.stdout)
    assert errors == [("3", "attr-defined"), ("4", "attr-defined"), ("5", "call-arg")], result.stdout


@pytest.mark.parametrize("package", PACKAGES)
def test_package_has_a_page(package: str) -> None:
    page = PACKAGE / package / "README.md"
    assert page.is_file(), f"{package} needs a README.md: what it is for, an example, and how to add to it"
    assert 3 <= len(page.read_text(encoding="utf-8").splitlines()) <= 80, f"{package}/README.md: one page is enough"


def test_files_are_short() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert not {str(path.relative_to(PACKAGE)): lines for path, lines in lengths.items() if lines > 400}


def test_one_version_everywhere() -> None:
    citation = re.search(r"^version: *(\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation is not None
    assert citation[1].strip("\"'") == setgrad.__version__
    newest = re.search(r"^## \[(.+?)\] - (\d{4}-\d\d-\d\d|unreleased)$", _changelog(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == setgrad.__version__


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# A name and a version, and below it a hash of every file.
PINS = {_canonical(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", LOCK, re.MULTILINE)}


def test_lock_pins_every_requirement_in_its_range() -> None:
    project = PYPROJECT["project"]
    # The rivals of the benchmarks, and what a cluster, exports and serving need, are not part of the development
    # environment.
    outside = ("bench", "cluster", "export", "serve")
    extras = [line for name, lines in project["optional-dependencies"].items() if name not in outside for line in lines]
    groups = [line for lines in PYPROJECT["dependency-groups"].values() for line in lines]
    for line in {*project["dependencies"], *extras, *groups, *PYPROJECT["build-system"]["requires"]}:
        requirement = Requirement(line)
        version = PINS.get(_canonical(requirement.name))
        assert version is not None, f"requirements.lock lacks {requirement.name}"
        assert version in requirement.specifier, line


def test_every_pinned_file_has_a_hash_but_those_of_torch() -> None:
    parts = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    unhashed = [
        part.split("==")[0] for part in parts if not re.search(r"--hash=sha256:[0-9a-f]{64}$", part, re.MULTILINE)
    ]
    assert len(parts) == len(PINS) and unhashed == ["torch"]


def test_lock_names_no_host_and_no_local_build() -> None:
    assert "://" not in LOCK
    assert not any("+" in version for version in PINS.values())
