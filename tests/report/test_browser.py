"""The page in headless Chromium: it loads, sorts, filters, unfolds, draws, prints, and fetches nothing."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.common.print_page_options import PrintOptions
from selenium.webdriver.support.ui import Select, WebDriverWait

Browser = webdriver.Chrome


@pytest.fixture(scope="module")
def browser(programs: tuple[str, str]) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--force-device-scale-factor=1"):
        options.add_argument(flag)
    for flag in ("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-sync"):
        options.add_argument(flag)  # what Chromium would do besides opening the page
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium refuses to run as root with it
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(programs[1]))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    """The page, freshly loaded in a wide window."""
    browser.set_window_size(1280, 1000)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    )
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    return browser


def complaints(browser: Browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]


def js(browser: Browser, code: str, *arguments: Any) -> Any:
    return browser.execute_script(code, *arguments)


def column(browser: Browser, table: str, title: str) -> list[str]:
    """The visible cells of a column, from top to bottom."""
    code = """
      const table = document.getElementById(arguments[0]);
      const heads = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
      const at = heads.indexOf(arguments[1]);
      return Array.from(table.tBodies[0].rows).filter((row) => !row.hidden).map((row) => row.cells[at].textContent);
    """
    return js(browser, code, table, title)


def head(browser: Browser, table: str, title: str) -> Any:
    return browser.find_element(By.XPATH, f"//table[@id='{table}']/thead//button[text()='{title}']")


def tools(browser: Browser, table: str) -> Any:
    """The filter's controls of a table."""
    return browser.find_element(By.XPATH, f"//table[@id='{table}']/../preceding-sibling::div[@class='tools'][1]")


def unfold(browser: Browser, seed: int) -> Any:
    node = browser.find_element(By.ID, f"seed-{seed}")
    node.find_element(By.TAG_NAME, "summary").click()
    WebDriverWait(browser, 10).until(lambda _: node.find_elements(By.CSS_SELECTOR, "figure svg[role=img]"))
    return node


def test_it_loads_without_an_error_or_a_request(opened: Browser, page: Path) -> None:
    unfold(opened, 0)
    assert complaints(opened) == []
    asked = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    urls = [m["params"]["request"]["url"] for m in asked if m["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in urls
    assert [url for url in urls if url != page.as_uri() and not url.startswith("data:")] == []


def test_the_policy_stops_what_would_go_out(opened: Browser) -> None:
    code = """
      const done = arguments[arguments.length - 1], seen = [];
      document.addEventListener("securitypolicyviolation", (event) => seen.push(event.effectiveDirective));
      const image = new Image();
      image.src = "https://example.invalid/a.png";
      const inline = document.createElement("script");
      inline.textContent = "window.hacked = 1";
      document.body.append(inline);
      fetch("https://example.invalid/").then(() => seen.push("fetched"), () => seen.push("refused"))
        .finally(() => setTimeout(() => done([seen, window.hacked]), 100));
    """
    seen, hacked = opened.execute_async_script(code)
    assert {"img-src", "script-src-elem", "connect-src", "refused"} <= set(seen)
    assert hacked is None


def test_texts_of_journals_stay_text(opened: Browser, evil: tuple[str, str]) -> None:
    rationale, agent = evil
    assert agent in column(opened, "runs", "agent")
    node = unfold(opened, 0)
    node.find_element(By.XPATH, ".//summary[starts-with(text(), 'Week by week')]").click()
    table = WebDriverWait(opened, 10).until(lambda _: node.find_element(By.CSS_SELECTOR, "table.words"))
    assert rationale in [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "td:nth-child(2)")]
    assert js(opened, "return [window.hacked, document.images.length, document.scripts.length]") == [None, 0, 2]
    assert complaints(opened) == []


def test_tables_sort_by_click_and_by_key(opened: Browser) -> None:
    def numbers() -> list[float]:
        return [float(cell.replace(",", "")) for cell in column(opened, "references", "floor")]

    button = head(opened, "references", "floor")
    button.click()
    assert numbers() == sorted(numbers())
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    button.send_keys(Keys.ENTER)
    assert numbers() == sorted(numbers(), reverse=True)
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") == "descending"
    other = head(opened, "references", "profile")
    other.send_keys(Keys.SPACE)
    assert column(opened, "references", "profile") == sorted(column(opened, "references", "profile"))
    assert button.find_element(By.XPATH, "..").get_attribute("aria-sort") is None


def test_undefined_numbers_sort_last_both_ways(opened: Browser) -> None:
    button = head(opened, "skill", "mean")
    for _ in range(2):
        button.click()
        cells = column(opened, "skill", "mean")
        assert "–" in cells and "–" not in cells[: len(cells) - cells.count("–")]


def test_tables_filter_and_say_how_many_rows(opened: Browser) -> None:
    where = tools(opened, "skill-by-seed")
    box, count = where.find_element(By.TAG_NAME, "input"), where.find_element(By.TAG_NAME, "output")
    assert count.get_attribute("aria-live") == "polite"
    rows = len(column(opened, "skill-by-seed", "agent"))
    assert count.text == f"{rows} of {rows} rows shown"
    box.send_keys("GPT-5")
    assert set(column(opened, "skill-by-seed", "agent")) == {"gpt-5.4"}
    assert count.text == f"2 of {rows} rows shown"
    profile = column(opened, "skill-by-seed", "profile")[0]
    Select(where.find_element(By.TAG_NAME, "select")).select_by_value(profile)
    assert set(column(opened, "skill-by-seed", "profile")) == {profile}
    box.clear()
    box.send_keys("no such agent")
    assert column(opened, "skill-by-seed", "agent") == []
    assert count.text == f"0 of {rows} rows shown"


def test_a_linked_seed_unfolds_and_has_the_focus(opened: Browser) -> None:
    box = opened.find_element(By.CSS_SELECTOR, "div.tools[aria-label='Filter: Episodes'] input")
    box.send_keys("Seed 0")
    node = opened.find_element(By.ID, "seed-11")
    assert not node.is_displayed()
    opened.find_element(By.CSS_SELECTOR, "#references a[href='#seed-11']").send_keys(Keys.ENTER)
    WebDriverWait(opened, 10).until(lambda _: node.is_displayed() and node.find_elements(By.TAG_NAME, "figure"))
    assert opened.switch_to.active_element.tag_name == "summary"
    assert opened.switch_to.active_element.find_element(By.XPATH, "..").get_attribute("id") == "seed-11"


def test_an_episode_unfolds_by_key_and_draws(opened: Browser) -> None:
    assert opened.find_elements(By.CSS_SELECTOR, ".episode figure") == []
    opened.find_element(By.CSS_SELECTOR, "#seed-0 > summary").send_keys(Keys.ENTER)
    node = opened.find_element(By.ID, "seed-0")
    pictures = WebDriverWait(opened, 10).until(lambda _: node.find_elements(By.CSS_SELECTOR, "figure svg[role=img]"))
    names = [js(opened, "return arguments[0].querySelector('title').textContent", p) for p in pictures]
    assert names == [
        "Tape of seed 0",
        "Posteriors of the exact filters, seed 0",
        "Books of floor, seed 0",
        "Books of oracle, run 1 of 2, seed 0",
        "Books of buyer, seed 0",
        "What the rationales name, seed 0",
        "What the rationales name, seed 0",
    ]
    broken = """return Array.from(document.querySelectorAll("#seed-0 svg *"), (node) =>
      Array.from(node.attributes, (a) => a.value).join(" ")).filter((words) => /NaN|undefined|Infinity/.test(words))"""
    assert js(opened, broken) == []
    # Truth, once for each factor and week; every rectangle of a posterior has a probability.
    assert len(pictures[1].find_elements(By.CSS_SELECTOR, ".truth")) == 6 * 27
    for picture in pictures:
        about = picture.get_attribute("aria-labelledby").split()
        assert all(js(opened, "return document.getElementById(arguments[0]).textContent", part) for part in about)


def test_numbers_of_a_chart_are_its_data(opened: Browser, report: Any) -> None:
    node = unfold(opened, 0)
    oracle = report.document["seeds"][0]["runs"][1]
    figure = node.find_element(By.XPATH, ".//figure[figcaption[starts-with(., 'Oracle, run 1 of 2')]]")
    assert f"${oracle['cost'] / 100:,.2f} in 26 weeks" in figure.find_element(By.TAG_NAME, "figcaption").text
    figure.find_element(By.CSS_SELECTOR, "details.data > summary").click()
    rows = WebDriverWait(opened, 10).until(lambda _: figure.find_elements(By.CSS_SELECTOR, "tbody tr"))
    cells = js(
        opened,
        "return Array.from(arguments[0].querySelectorAll('tbody tr'), (r) => Array.from(r.cells, (c) => c.textContent))",
        figure,
    )
    assert len(rows) == 27
    assert [row[0] for row in cells] == [*map(str, range(1, 27)), "all"]
    assert [row[3] for row in cells[:26]] == [str(x) for x in oracle["books"]["inventory"]]
    assert [row[-1] for row in cells[:26]] == [f"{x / 100:,.2f}" for x in oracle["weekly"]]
    assert cells[26][-1] == f"{oracle['cost'] / 100:,.2f}"


def test_colours_follow_the_system_and_the_button(opened: Browser) -> None:
    def back() -> str:
        return js(opened, "return getComputedStyle(document.body).backgroundColor")

    button = opened.find_element(By.ID, "theme")
    assert (back(), button.get_attribute("aria-pressed")) == ("rgb(255, 255, 255)", "false")
    button.click()
    assert (back(), button.get_attribute("aria-pressed")) == ("rgb(20, 23, 26)", "true")
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    opened.refresh()
    button = opened.find_element(By.ID, "theme")
    assert (back(), button.get_attribute("aria-pressed")) == ("rgb(20, 23, 26)", "true")
    button.send_keys(Keys.SPACE)
    assert (back(), button.get_attribute("aria-pressed")) == ("rgb(255, 255, 255)", "false")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_what_is_behind_them(opened: Browser, scheme: str) -> None:
    opened.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    style = "return (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim()"
    names = (
        "back",
        "fore",
        "soft",
        "panel",
        "link",
        "stress-band",
        "stress-ink",
        "brewing",
        "brewing-ink",
        "calm-band",
    )
    colours = {n: js(opened, f"return (() => {{ {style} }})()(arguments[0])", f"--{n}") for n in names}

    def brightness(name: str) -> float:
        parts = [int(colours[name][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [
        ("fore", "back"),
        ("soft", "back"),
        ("link", "back"),
        ("fore", "panel"),
        ("soft", "panel"),
        ("soft", "calm-band"),
    ]
    for ink, paper in [*pairs, ("stress-ink", "stress-band"), ("brewing-ink", "brewing")]:
        low, high = sorted((brightness(ink), brightness(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper)


def test_it_is_made_for_readers_of_the_screen(opened: Browser) -> None:
    unfold(opened, 0)
    js(opened, "document.querySelectorAll('#seed-0 .inside details').forEach((node) => { node.open = true; })")
    made = "return document.querySelectorAll('#seed-0 .inside details table').length"
    WebDriverWait(opened, 10).until(lambda _: js(opened, made) == 8)  # of seven charts, and one of words
    for landmark in ("header", "nav[aria-label]", "main", "footer", "html[lang=en]", "a.skip[href='#main']"):
        assert len(opened.find_elements(By.CSS_SELECTOR, landmark)) == 1, landmark
    levels = [int(h.tag_name[1]) for h in opened.find_elements(By.CSS_SELECTOR, "h1, h2, h3, h4")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    bare = """return Array.from(document.querySelectorAll("table")).filter((table) => !table.caption ||
      Array.from(table.tHead.rows[0].cells).some((cell) => cell.scope !== "col") ||
      Array.from(table.tBodies[0].rows).some((row) => row.cells[0].scope !== "row")).length"""
    assert js(opened, bare) == 0
    unnamed = (
        """return Array.from(document.querySelectorAll("input, select")).filter((node) => !node.labels.length).length"""
    )
    assert js(opened, unnamed) == 0
    twice = (
        "const ids = Array.from(document.querySelectorAll('[id]'), (n) => n.id); return ids.length - new Set(ids).size"
    )
    assert js(opened, twice) == 0
    silent = """return Array.from(document.querySelectorAll("svg")).filter((node) =>
      node.getAttribute("role") !== "img" && node.getAttribute("aria-hidden") !== "true").length"""
    assert js(opened, silent) == 0


def test_a_narrow_window_does_not_scroll_sideways(opened: Browser) -> None:
    size = {"width": 400, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        unfold(opened, 0)
        assert js(opened, "return document.documentElement.scrollWidth") <= 400
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def pages(pdf: bytes) -> int:
    """Pages of a PDF: page objects, in the file or in its compressed object streams."""
    parts = [pdf]
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            parts.append(zlib.decompress(found[1]))
        except zlib.error:
            continue
    return sum(len(re.findall(rb"/Type\s*/Page\b", part)) for part in parts)


def test_it_prints_tables_and_what_is_unfolded(opened: Browser) -> None:
    folded = base64.b64decode(opened.print_page(PrintOptions()))
    assert folded.startswith(b"%PDF")
    unfold(opened, 0)
    unfolded = base64.b64decode(opened.print_page(PrintOptions()))
    assert pages(unfolded) > pages(folded) >= 1
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = {seed: opened.find_element(By.ID, f"seed-{seed}").is_displayed() for seed in (0, 3, 11)}
        assert shown == {0: True, 3: False, 11: False}
        assert not opened.find_element(By.CSS_SELECTOR, ".tools").is_displayed()
        assert opened.find_element(By.ID, "references").is_displayed()
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_without_a_script_the_tables_are_there(browser: Browser, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(page.as_uri())
        assert "Sorting, filtering" in browser.find_element(By.TAG_NAME, "noscript").text
        assert len(browser.find_elements(By.CSS_SELECTOR, "#references tbody tr")) == 3
        assert browser.find_elements(By.CSS_SELECTOR, "thead button") == []
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.slow
def test_every_episode_of_a_page_can_be_unfolded_at_once(opened: Browser) -> None:
    opened.find_element(By.XPATH, "//button[text()='Unfold those shown']").click()
    WebDriverWait(opened, 20).until(lambda d: len(d.find_elements(By.CSS_SELECTOR, ".episode svg[role=img]")) > 12)
    assert complaints(opened) == []
    opened.find_element(By.XPATH, "//button[text()='Fold all']").click()
    assert opened.find_elements(By.CSS_SELECTOR, ".episode[open]") == []
