"""How it looks: nothing sticks out, everything can be read, and the keyboard gets everywhere. Pictures are kept."""

import sys
from pathlib import Path

import pytest

from tests.browser.conftest import Dashboard
from tests.browser.events import fail_one, send_job
from tests.support.processes import Stage

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_fits_and_can_be_read(
    stage: Stage, dashboard: Dashboard, tmp_path: Path, size: str, scheme: str
) -> None:
    stage.worker()
    stage.start("scheduler", sys.executable, "-m", "scheduler", "tests.apps.periodic", ready="scheduler started")
    event, _ = fail_one(stage)
    stage.emit(3)
    (late,) = stage.emit(1, do="fail", times=9)
    job = send_job(stage)
    stage.wake()
    width, height = SIZES[size]
    page = dashboard.page(viewport={"width": width, "height": height}, color_scheme=scheme)
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
        "periodic": "/periodic",
        "audit": "/audit",
        "missing": "/nowhere",
    }
    for name, path in paths.items():
        page.goto(path)
        page.wait_for_load_state("networkidle")
        page.screenshot(path=tmp_path / f"{name}-{size}-{scheme}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        assert page.evaluate(TOO_FAINT) == [], name
    assert len(list(tmp_path.glob("*.png"))) == len(paths)


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
