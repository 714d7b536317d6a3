"""How it looks: nothing sticks out, everything can be read, and the keyboard gets everywhere. Pictures are kept."""

import subprocess
import sys
from importlib.resources import files
from itertools import product
from pathlib import Path

from outbox.telemetry import audit
from tests.browser.conftest import Dashboard
from tests.browser.events import block_key, fail_one, send_job
from tests.support.processes import BIN, Stage
from tests.support.servers import PATIENCE_SECONDS

SIZES = {"desktop": (1440, 900), "tablet": (1024, 800), "phone": (390, 844)}

# A line for each violation that axe finds, the checks of accessibility that a package for Playwright brings.
VIOLATIONS = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations.map(
  (each) => [each.id, each.help, ...each.nodes.map((node) => node.html)].join("; "))"""

# The contrast of each text against what is behind it, where it is too low to be read.
TOO_FAINT = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((v) => linear(v / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const node of document.querySelectorAll("main *, header *, footer *")) {
    const text = [...node.childNodes].filter((each) => each.nodeType === 3 && each.textContent.trim());
    if (!text.length || !node.checkVisibility() || node.closest(".hidden, svg")) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${node.tagName}.${node.className} ${contrast.toFixed(2)}: ${node.textContent}`);
  }
  return found;
}"""


def test_every_page_fits_and_can_be_read_on_desktops_and_phones_by_day_and_by_night(
    stage: Stage, dashboard: Dashboard, tmp_path: Path
) -> None:
    stage.worker()
    stage.start("scheduler", sys.executable, "-m", "scheduler", "tests.apps.periodic", ready="scheduler started")
    event, _ = fail_one(stage)
    stage.emit(3)
    (late,) = stage.emit(1, do="fail", times=9)
    job = send_job(stage)
    _, waiting = block_key(stage)
    stage.wake()
    stage.wait_for(lambda: stage.rows("status").count(("delivered",)) >= 2, "two events are delivered")
    command = [str(BIN / "outbox"), "delete", "--status", "delivered", "--limit", "2", "--yes"]
    subprocess.run(command, env=stage.environment, capture_output=True, check=True, timeout=PATIENCE_SECONDS)
    (entry,) = audit.latest(stage.box.dialect)
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text()
    page = dashboard.page(reduced_motion="reduce")  # otherwise colours change for a moment after the scheme has
    paths = {
        "overview": "/",
        "events": "/events",
        "filtered": "/events?status=failed&tenant=nobody",
        "failed": f"/events/{event}",
        "pending": f"/events/{late}",
        "jobs": "/events?kind=job",
        "job": f"/events/{job}",
        "replay": "/confirm?action=replay&scope=all",
        "confirm": f"/confirm?action=retry&scope=selected&from=event&id={event}",
        "delete": "/confirm?action=delete&scope=all",
        "keys": "/keys",
        "waiting": f"/events/{waiting}",
        "skip": f"/confirm?action=skip&scope=selected&from=keys&id={waiting}",
        "week": "/?range=7d&of=type:test.emitted",
        "control": "/control",
        "destination": "/destination?name=ledger",
        "actor": "/actor?name=charge",
        "scheduled": "/scheduled",
        "retries": "/scheduled?which=retries",
        "streams": "/streams",
        "periodic": "/periodic",
        "audit": "/audit",
        "entry": f"/audit/{entry.id}",
        "missing": "/nowhere",
    }
    for name, path in paths.items():
        page.goto(path)
        page.evaluate(f"{axe}; undefined")
        assert page.evaluate(VIOLATIONS) == [], name
        for (size, (width, height)), scheme in product(SIZES.items(), ("light", "dark")):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)
            look = f"{name}-{size}-{scheme}"
            page.screenshot(path=tmp_path / f"{look}.png", full_page=True)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), look
            assert page.evaluate(TOO_FAINT) == [], look
    assert len(list(tmp_path.glob("*.png"))) == 2 * len(SIZES) * len(paths)
    # While it looks, axe sets styles, and the policy of the pages forbids it.
    dashboard.trouble[:] = [each for each in dashboard.trouble if "Applying inline style" not in each]


def test_the_keyboard_is_enough(stage: Stage, dashboard: Dashboard) -> None:
    stage.worker()
    event, _ = fail_one(stage)
    page = dashboard.page()
    page.goto("/events?status=failed")
    page.keyboard.press("Tab")
    assert page.locator(":focus").inner_text() == "Skip to content"
    page.keyboard.press("Enter")
    assert page.locator(":focus").get_attribute("id") == "main"

    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if focused.count() == 0:
            break
        outline = focused.evaluate("node => getComputedStyle(node).outlineStyle")
        assert outline != "none", focused.evaluate("node => node.outerHTML")
        reached.append(focused.get_attribute("value") or focused.inner_text())
        if reached[-1] == str(event):
            page.keyboard.press("Space")
            break
    assert reached[-1] == str(event)
    assert page.locator(f'input[value="{event}"]').is_checked()
    page.get_by_role("button", name="Retry…").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Retry 1 event?").wait_for()
