#!/usr/bin/env python3
"""Run the code of pages, and write what it prints and draws into them.

    scripts/run_pages.py docs/tutorials/baskets.md ...

The ```python blocks of a page run one after the other in an empty folder, and so do the lines of its ```sh blocks.
What one of them prints follows it as a ```text block. Pictures that the page shows are copied from that folder. The
last line of the page tells how it was run, with a hash of its code: a test fails where code was changed and not run
again.
"""

import contextlib
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.DOTALL | re.MULTILINE)
PICTURE = re.compile(r"!\[[^\]]*\]\(([\w.-]+)\)")
FOOTER = re.compile(r"^<sub>Run by .*; code (\w+)\.</sub>\n", re.MULTILINE)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Return the language and the code of each block that is run."""
    return [(match[1], match[2]) for match in BLOCK.finditer(text)]


def code_hash(text: str) -> str:
    """Return a hash of the code of a page, and of the examples that it names."""
    digest = hashlib.sha256()
    for language, code in code_blocks(text):
        digest.update(f"{language}\n{code}\n".encode())
        for name in re.findall(r"\bexamples/\w+\.py", code):
            digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()[:12]


def run_page(page: Path) -> None:
    """Run a page and rewrite it, together with its pictures."""
    text, names = page.read_text(encoding="utf-8"), {"__name__": "page"}
    started, back = processor_seconds(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        os.chdir(folder)
        try:
            text = BLOCK.sub(lambda match: run_block(match[1], match[2], names), text)
        finally:
            os.chdir(back)
        for name in PICTURE.findall(text):
            shutil.copy(Path(folder) / name, page.parent / name)
    seconds = processor_seconds() - started
    page.write_text(f"{FOOTER.sub('', text).rstrip()}\n\n{footer(text, seconds)}\n", encoding="utf-8")


def run_block(language: str, code: str, names: dict[str, Any]) -> str:
    """Run a block and return it with what it printed."""
    output = run_python(code, names) if language == "python" else run_commands(code)
    # Where nothing is printed, nothing follows.
    output = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    return f"```{language}\n{code}```\n" + (f"\n```text\n{output}\n```\n" if output else "")


def run_python(code: str, names: dict[str, Any]) -> str:
    """Return what a block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "a block of the page", "exec"), names)
    return printed.getvalue()


def run_commands(code: str) -> str:
    """Return what commands print."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        ["bash", "-euc", code], env=environment, stdout=subprocess.PIPE, encoding="utf-8", check=True
    ).stdout


def processor_seconds() -> float:
    """Return the processor time of this process and of the commands that it ran: other work does not count."""
    return sum(os.times()[:4])


def footer(text: str, seconds: float) -> str:
    """Return the last line of a page."""
    import torch

    import setgrad

    where = f"setgrad {setgrad.__version__}, torch {torch.__version__.partition('+')[0]}, {platform.machine()}"
    threads = f"{torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    return (
        f"<sub>Run by `make tutorials` in {seconds:.0f} s of processor time ({where}, {threads}); "
        f"code {code_hash(text)}.</sub>"
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument, flush=True)
        run_page(Path(argument).resolve())
