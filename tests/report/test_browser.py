"""The page in a browser: it fits a phone, texts stay texts, and nothing is asked for. Skipped without Chromium."""

import html
import json
import re
import shutil
import subprocess
from typing import Any

import pytest

from setgrad._text_table import TextTable
from setgrad.report import Section, write_report
from tests.report.conftest import HOSTILE, Shop

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# What the browser asks for by itself all the same; no name is resolved.
OWN = re.compile(r"https?://([\w-]+\.)*(google|googleapis|gvt1)\.com/")
# A new profile, and few requests of the browser's own.
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"),
    *("--hide-scrollbars", "--disable-dev-shm-usage", "--virtual-time-budget=10000"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
# A request of the frames' own page: the log must have it. Nobody listens there.
CONTROL = "http://127.0.0.1:9/control"
# The page in frames of both widths, and what a reader would find there.
PROBE = """<!DOCTYPE html><meta charset="utf-8"><body><img src="CONTROL"><script>
const page = PAGE, found = {widths: {}};
const frames = [390, 1280].map(width => {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:800px;border:0`;
  frame.srcdoc = page;
  document.body.append(frame);
  return new Promise(done => frame.onload = () => {
    const inside = frame.contentDocument;
    found.widths[width] = inside.documentElement.scrollWidth;
    const off = node => node.getBoundingClientRect().right > width + 0.5 && !node.closest(".wide");
    found[`off ${width}`] = [...inside.body.querySelectorAll("*")].filter(off).map(node => node.outerHTML.slice(0, 80));
    found.text = inside.body.textContent;
    found.scripts = inside.scripts.length;
    found.images = [...inside.images].every(image => image.complete && image.naturalWidth > 0);
    done();
  });
});
Promise.all(frames).then(() => document.body.textContent = "found:" + JSON.stringify(found) + ":end");
</script></body>"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, shop: Shop) -> dict[str, Any]:
    """Open a report with hostile texts everywhere; return what its frames hold and the addresses that it asked."""
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    folder = tmp_path_factory.mktemp("browser")
    section = Section(HOSTILE[0], shop.selector, shop.evaluation, HOSTILE[1], shop.training, shop.table)
    summary = TextTable("a title without any space".replace(" ", "_") * 9, (HOSTILE[1],), ((HOSTILE[0] * 9,),))
    write_report(folder / "report.html", [section], title=HOSTILE[0], summary=summary)
    page = json.dumps((folder / "report.html").read_text(encoding="utf-8")).replace("<", "\\u003c")
    (folder / "probe.html").write_text(PROBE.replace("CONTROL", CONTROL).replace("PAGE", page, 1), encoding="utf-8")
    log = folder / "net.json"
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    dom = subprocess.run(
        [*command, (folder / "probe.html").as_uri()], capture_output=True, encoding="utf-8", timeout=60, check=True
    ).stdout
    answer = re.search(r"found:(.*):end", dom, re.DOTALL)
    assert answer, dom[:2000]
    asked = re.findall(r'"url":"(\w+://[^"]*)"', log.read_text(encoding="utf-8"))
    return {**json.loads(html.unescape(answer[1])), "asked": asked}


def test_the_page_fits_phones_and_screens(found: dict[str, Any]) -> None:
    assert found["widths"] == {"390": 390, "1280": 1280}
    assert found["off 390"] == found["off 1280"] == []


def test_hostile_names_are_shown_as_text(found: dict[str, Any]) -> None:
    assert found["scripts"] == 0
    for text in HOSTILE[:4]:
        assert text in found["text"]


def test_pictures_are_drawn_and_nothing_is_asked_for(found: dict[str, Any]) -> None:
    assert found["images"]
    asked = {address for address in found["asked"] if re.match("http|ws", address) and not OWN.match(address)}
    assert asked == {CONTROL}
