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

from stocktake_jax.report import Report
from stocktake_jax.report.page import embedded

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


def test_the_keyboard_goes_through_the_page_in_its_order(opened: Browser) -> None:
    """Every stop shows that it has the focus; the first one leads past the head of the page."""
    here = """const a = document.activeElement, style = getComputedStyle(a), box = a.getBoundingClientRect();
      return [a.tagName, a.textContent.trim(), style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 &&
        box.left >= 0 && box.width > 0, Array.from(document.querySelectorAll("*")).indexOf(a)]"""

    def tab() -> tuple[str, str, int]:
        opened.switch_to.active_element.send_keys(Keys.TAB)
        tag, words, seen, place = js(opened, here)
        assert seen, (tag, words)
        return tag, words, place

    assert tab()[:2] == ("A", "Skip to the results")
    head = [tab() for _ in range(7)]
    assert [words for _, words, _ in head[:6]] == [
        *("Summary", "References", "Skill", "Seeing and acting", "Agents’ runs", "Episodes")
    ]
    assert head[6][0] == "BUTTON"
    opened.find_element(By.CSS_SELECTOR, "a.skip").send_keys(Keys.ENTER)
    assert js(opened, "return document.activeElement.id") == "main"
    inside = [tab() for _ in range(14)]
    places = [place for _, _, place in [*head, *inside]]
    assert places == sorted(set(places))
    # The filter of the first table, the table itself (it can be scrolled), its heads, what they mean.
    assert [tag for tag, _, _ in inside] == [
        "INPUT",
        "SELECT",
        "DIV",
        *["BUTTON"] * 7,
        "SUMMARY",
        "INPUT",
        "SELECT",
        "DIV",
    ]


@pytest.fixture
def narrow(opened: Browser) -> Iterator[Browser]:
    """The page on a telephone."""
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    yield opened
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_narrow_window_does_not_scroll_sideways(narrow: Browser) -> None:
    unfold(narrow, 0)
    assert js(narrow, "return document.documentElement.scrollWidth") <= 390


def test_a_table_that_is_scrolled_sideways_keeps_its_caption_and_names(narrow: Browser) -> None:
    code = """
      const table = document.getElementById("skill"), frame = table.parentElement;
      frame.scrollLeft = 300;
      const left = (node) => node.getBoundingClientRect().left - frame.getBoundingClientRect().left;
      const caption = table.caption.firstElementChild, row = table.tBodies[0].rows[0];
      return [frame.scrollLeft, left(caption), caption.getBoundingClientRect().right, left(row.cells[0]),
        left(table.tHead.rows[0].cells[0]), left(row.cells[1]), getComputedStyle(row.cells[0]).backgroundColor];
    """
    scrolled, caption, end, name, head_, second, back = js(narrow, code)
    assert scrolled == 300
    assert max(abs(at) for at in (caption, name, head_)) <= 1 and end <= 390
    assert second < 0  # what is not kept has moved out of sight
    assert back == "rgb(255, 255, 255)"


TEXTS = """
  const faults = [];
  for (const picture of document.querySelectorAll("figure svg[role=img]")) {
    const { width, height } = picture.viewBox.baseVal, name = picture.querySelector("title").textContent;
    const texts = Array.from(picture.querySelectorAll("text"), (node) => [node.textContent, node.getBBox()]);
    texts.forEach(([words, a], i) => {
      const inside = a.x >= -0.5 && a.x + a.width <= width + 0.5 && a.y >= -2 && a.y + a.height <= height + 2;
      if (!inside) faults.push([name, "cut", words]);
      for (const [others, b] of texts.slice(i + 1)) {
        if (Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x) > 1 &&
            Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y) > 4) faults.push([name, words, others]);
      }
    });
  }
  return [document.querySelectorAll("figure svg[role=img] text").length, faults];
"""


@pytest.mark.parametrize("width", [1280, 700, 390])
def test_no_text_of_a_chart_is_cut_or_covers_another(opened: Browser, width: int) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for seed in (0, 3, 11):
            unfold(opened, seed)
        texts, faults = js(opened, TEXTS)
        assert texts > 300 and faults == []
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_bills_that_dwarf_all_others_are_broken_and_say_their_amount(
    opened: Browser, report: Report, tmp_path: Path
) -> None:
    unfold(opened, 0)
    assert opened.find_elements(By.CSS_SELECTOR, "#seed-0 .break, #seed-0 .inside > .note") == []
    document = json.loads(json.dumps(report.document))
    run = document["seeds"][0]["runs"][0]
    for week, dollars in ((7, 9123), (8, 12345)):
        run["bill"].setdefault("couple", [0] * 26)[week] += 100 * dollars
        run["weekly"][week] += 100 * dollars
    path = tmp_path / "dear.html"
    path.write_text(report.html.replace(embedded(report.document), embedded(document)), encoding="utf-8")
    opened.get(path.as_uri())
    node = unfold(opened, 0)
    assert "broken" in node.find_element(By.CSS_SELECTOR, ".inside > .note").text
    books = node.find_elements(By.CSS_SELECTOR, ".pair svg[role=img]")
    assert [len(picture.find_elements(By.CLASS_NAME, "break")) for picture in books] == [2, 0, 0]
    amounts = [node_.text for node_ in books[0].find_elements(By.CLASS_NAME, "over")]
    assert amounts == [f"${run['weekly'][week] / 100:,.0f}" for week in (7, 8)]
    assert js(opened, TEXTS)[1] == []
    # No bar leaves the chart, and the bars of the other weeks can still be told apart.
    rows = js(
        opened,
        """return Array.from(arguments[0].querySelectorAll(".segment"), (node) => {
          const box = node.getBBox(); return [box.x, box.y, box.height]; })""",
        books[0],
    )
    top = min(y for _, y, _ in rows)
    totals: dict[float, float] = {}
    for x, _, tall in rows:
        totals[x] = totals.get(x, 0.0) + tall
    assert top > 200 and len(totals) == 26
    assert sorted(totals.values())[-1] <= 112.1 and sorted(totals.values())[-3] > 0.3 * 112


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
