
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const WEEKS = data.horizon + 1;
  const NS = "http://www.w3.org/2000/svg";
  const DASH = "\u2013";

  // ---- making elements. Text goes in as text nodes only, so that nothing in a journal can become markup.

  function add(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value !== undefined && value !== null) node.setAttribute(name, value);
    }
    for (const child of children) {
      if (child !== undefined && child !== null) node.append(child);
    }
    return node;
  }
  const el = (name, attributes, ...children) => add(document.createElement(name), attributes, children);
  const svg = (name, attributes, ...children) => add(document.createElementNS(NS, name), attributes, children);
  const text = (x, y, string, kind) => svg("text", { x, y, class: kind }, string);
  const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
  const rect = (x, y, width, height, kind, more) =>
    svg("rect", { x: x.toFixed(1), y: y.toFixed(1), width: Math.max(width, 0).toFixed(1),
      height: Math.max(height, 0).toFixed(1), class: kind, ...more });
  const titled = (node, string) => { node.append(svg("title", {}, string)); return node; };

  const money = (cents) => (cents < 0 ? "\u2212" : "") + "$" +
    (Math.abs(cents) / 100).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const dollars = (cents) => (cents / 100).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const share = (thousandths) => (thousandths / 1000).toFixed(3);
  const plain = (name) => name.replaceAll("_", " ");
  const upper = (string) => string[0].toUpperCase() + string.slice(1);
  const label = (f, k) => plain(data.factors[f].labels[k]);
  const each = (n, make) => Array.from({ length: n }, (_, i) => make(i));

  // ---- colours

  const themeButton = document.getElementById("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
  const showTheme = () => themeButton.setAttribute("aria-pressed", String(isDark()));
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);
  showTheme();

  // ---- tables: sort and filter

  function sortable(table) {
    const heads = Array.from(table.tHead.rows[0].cells);
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = el("button", { type: "button" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = Array.from(body.rows);
        const keys = new Map(rows.map((row) => {
          const cell = row.cells[column];
          const number = cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
          return [row, { number, words: cell.textContent.trim() }];
        }));
        const empty = (key) => Number.isNaN(key.number) && (key.words === DASH || key.words === "");
        rows.sort((first, second) => {
          const a = keys.get(first), b = keys.get(second);
          if (empty(a) || empty(b)) return empty(a) - empty(b);
          const both = !Number.isNaN(a.number) && !Number.isNaN(b.number);
          const order = both ? a.number - b.number : a.words.localeCompare(b.words, "en", { numeric: true });
          return down ? -order : order;
        });
        body.append(...rows);
      });
    });
  }

  function filterable(where, items, what, profiles, before) {
    // One set of controls for a list of rows or episodes; the count is read out when it changes.
    const search = el("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    const choice = el("select", {}, el("option", { value: "" }, "any"));
    const present = new Set(items.map((item) => item.dataset.profile));
    for (const profile of ["isolated", "persistent", "compound", "all"]) {
      if (present.has(profile)) {
        choice.append(el("option", { value: profile }, profile === "all" ? "all (pooled)" : profile));
      }
    }
    const count = el("output", { "aria-live": "polite" });
    const update = () => {
      const wanted = search.value.trim().toLowerCase();
      let shown = 0;
      for (const item of items) {
        const words = item.tagName === "DETAILS" ? item.firstElementChild.textContent : item.textContent;
        const fits = (!wanted || words.toLowerCase().includes(wanted)) &&
          (!choice.value || item.dataset.profile === choice.value);
        item.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${items.length} ${what} shown`;
    };
    search.addEventListener("input", update);
    choice.addEventListener("change", update);
    const tools = el("div", { class: "tools", role: "group", "aria-label": `Filter: ${where}` },
      el("label", {}, "Filter", search), profiles ? el("label", {}, "Profile", choice) : null, count, ...before);
    update();
    return { tools, clear: () => { search.value = ""; choice.value = ""; update(); } };
  }

  for (const table of document.querySelectorAll("main section table")) {
    sortable(table);
    const rows = Array.from(table.tBodies[0].rows);
    const { tools } = filterable(table.caption.textContent, rows, "rows", table.dataset.profiles === "1", []);
    table.parentElement.before(tools);
  }

  // ---- charts: what they share

  const figures = [];  // [holder, draw, width drawn], to be drawn anew when the window changes much

  function figure(caption, more, draw, keys, table) {
    const holder = el("div");
    const node = el("figure", {}, el("figcaption", {}, caption, more ? el("span", {}, ` ${more}`) : null), keys, holder);
    if (table) node.append(lazy("Numbers of this chart", "data", table));
    figures.push({ holder, draw, width: 0 });
    return node;
  }

  const PAPER = 700;  // pixels of a printed page's width, about

  function redraw(printing) {
    // All are measured before any is drawn: a measure after a drawing has the browser lay out the page again.
    const measured = figures.map((entry) => [entry, Math.round(entry.holder.getBoundingClientRect().width)]);
    for (const [entry, seen] of measured) {
      const width = printing === true ? (entry.holder.closest(".pair") ? PAPER / 2 : PAPER) : seen;
      if (seen > 0 && Math.abs(width - entry.width) > 0.08 * entry.width) {
        entry.width = width;
        entry.holder.replaceChildren(entry.draw(Math.max(width, 300)));
      }
    }
  }

  let waiting = false;
  function soon() {
    // Once for all episodes that are unfolded together.
    if (waiting) return;
    waiting = true;
    window.requestAnimationFrame(() => { waiting = false; redraw(); });
  }

  function lazy(summary, kind, make) {
    // A disclosure whose inside is made when it is first opened.
    const node = el("details", { class: kind }, el("summary", {}, summary));
    node.addEventListener("toggle", () => {
      if (node.open && node.childElementCount === 1) node.append(make());
    });
    return node;
  }

  let serial = 0;
  function picture(width, height, title, about) {
    serial += 1;
    const ids = [`t${serial}`, `d${serial}`];
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": ids.join(" ") },
      svg("title", { id: ids[0] }, title), svg("desc", { id: ids[1] }, about));
  }

  function grid(caption, heads, rows, kind) {
    // A table of numbers; the first column is the row's name.
    const head = el("tr", {}, ...heads.map((h) => el("th", { scope: "col" }, h)));
    const body = rows.map((row) => el("tr", {}, ...row.map((cell, i) =>
      i === 0 ? el("th", { scope: "row" }, String(cell)) : el("td", { class: kind || "number" }, cell === null ? DASH : cell))));
    return el("div", { class: "frame", tabindex: "0", role: "region", "aria-label": caption },
      el("table", {}, el("caption", {}, el("span", {}, caption)), el("thead", {}, head), el("tbody", {}, ...body)));
  }

  function ticks(low, high, wanted) {
    // Round numbers that cover the range.
    const span = high - low || 1;
    const raw = span / Math.max(wanted, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
    const out = [];
    for (let at = Math.floor(low / step) * step; ; at += step) {
      out.push(Number(at.toPrecision(12)));
      if (at >= high - 1e-9) return out;
    }
  }

  function stripes(x, y, wide, tall) {
    // Over what stands for lost demand, so that it is told apart without its colour.
    let d = "";
    for (let at = y + 2.5; at < y + tall; at += 4) d += `M${x.toFixed(1)} ${at.toFixed(1)}h${wide.toFixed(1)}`;
    return svg("path", { class: "stripes", d });
  }

  const weekStep = (column) => (column >= 17 ? 1 : column >= 9 ? 2 : 4);

  function weekAxis(picture_, x, column, y, title) {
    for (let week = 0; week < WEEKS; week += weekStep(column)) {
      picture_.append(text((x(week) + column / 2).toFixed(1), y, String(week), "soft middle"));
    }
    picture_.append(text((x(0) + (column * WEEKS) / 2).toFixed(1), y + 14, title, "soft middle"));
  }

  function runsOf(series) {
    // [first week, last week, value] of every stretch of one value.
    const out = [];
    series.forEach((value, week) => {
      const last = out[out.length - 1];
      if (last && last[2] === value) last[1] = week;
      else out.push([week, week, value]);
    });
    return out;
  }

  function path(points) {
    // A broken line; null points leave gaps.
    let pen = "M";
    return points.map((p) => {
      if (p === null) { pen = "M"; return ""; }
      const step = `${pen}${p[0].toFixed(1)} ${p[1].toFixed(1)}`;
      pen = "L";
      return step;
    }).join("");
  }

  const ruler = document.createElement("canvas").getContext("2d");
  const letters = getComputedStyle(document.body).fontFamily;
  function wide(string, bold) {
    // Pixels of a text in a chart, as page.css sets it.
    ruler.font = `${bold ? "600 " : ""}11px ${letters}`;
    return ruler.measureText(string).width;
  }
  function fitted(string, room, bold) {
    // As much of a text as fits into so many pixels.
    const fits = (part) => wide(part, bold) <= room;
    if (fits(string)) return string;
    let most = string.length - 1;
    while (most > 0 && !fits(`${string.slice(0, most)}\u2026`)) most -= 1;
    return most ? `${string.slice(0, most)}\u2026` : "";
  }

  const swatch = (...shapes) => svg("svg", { viewBox: "0 0 26 14", "aria-hidden": "true" }, ...shapes);
  const keys = (...entries) => el("ul", { class: "keys" }, ...entries.map(([shape, words]) => el("li", {}, shape, words)));

  // ---- the tape

  function tellStress(s) {
    if (!s.stress.length) return "No factor is under stress in any week.";
    const told = s.stress.map(([f, first, last]) =>
      `${data.factors[f].name} ${label(f, s.regime[f][first])} ${first === last ? `week ${first}` : `weeks ${first} to ${last}`}`);
    return `Under stress: ${told.join("; ")}.`;
  }

  const kindOf = (f, k) => (data.factors[f].trouble[k] ? "stress" : data.factors[f].brewing[k] ? "brewing" : "calm");

  function drawTape(s, width) {
    const left = width < 560 ? 74 : 132, right = 8, strip = 78, top = 4;
    const column = (width - left - right) / WEEKS;
    const x = (week) => left + week * column;
    const height = top + data.factors.length * strip + 30;
    const out = picture(width, height, `Tape of seed ${s.seed}`, tellStress(s));
    data.factors.forEach((factor, f) => {
      const y = top + f * strip, base = y + 64;
      const stretches = runsOf(s.regime[f]);
      for (const [first, last, k] of stretches) {
        const kind = kindOf(f, k);
        if (kind !== "calm") out.append(rect(x(first), y + 18, (last - first + 1) * column, 46, kind));
      }
      const drawn = [s.values[f][0]].concat(factor.dashed ? [s.values[f][1]] : []);
      const known = drawn.flat().filter((v) => v !== null);
      const marks = factor.words ? factor.words.map((_, i) => i) : ticks(Math.min(...known), Math.max(...known), 2);
      const low = marks[0], high = marks[marks.length - 1];
      const at = (v) => base - 2 - ((v - low) / (high - low || 1)) * 40;
      for (const mark of factor.words ? marks : new Set([low, high])) {
        out.append(line(left, at(mark), width - right, at(mark), "axis"),
          text(left - 5, at(mark) + 4, factor.words ? factor.words[mark] : String(mark), "soft end"));
      }
      if (factor.dashed) {
        out.append(svg("path", { class: "two", d: path(s.values[f][1].map((v, w) => v === null ? null : [x(w) + column / 2, at(v)])) }));
      }
      out.append(svg("path", { class: "one", d: path(s.values[f][0].map((v, w) => v === null ? null : [x(w) + column / 2, at(v)])) }));
      s.values[f][0].forEach((v, w) => {
        if (v !== null) out.append(svg("circle", { class: "dot", cx: (x(w) + column / 2).toFixed(1), cy: at(v).toFixed(1), r: 2 }));
      });
      for (const [first, last, k] of stretches) {
        out.append(rect(x(first), y + 4, (last - first + 1) * column - 1, 13, `band-${kindOf(f, k)}`));
      }
      let taken = 0;
      stretches.forEach(([first, last, k], i) => {
        const kind = kindOf(f, k), from = x(first), long = (last - first + 1) * column;
        // The baseline is named once. A stretch too short for its name is named beside itself, where the baseline leaves
        // room for it that no other name has taken.
        const name = label(f, k);
        if (k === 0 && i > 0) return;
        const bold = kind === "stress", needs = wide(name, bold), cut = fitted(name, long - 3, bold);
        const free = (other) => (other && other[2] === 0 ? (other[1] - other[0] + 1) * column - 5 : 0);
        const write = (at, string, kind_) => { out.append(text(at, y + 14, string, kind_)); taken = at + wide(string, bold) + 5; };
        const inside = () => write(from + 2, cut, kind === "calm" ? "soft" : `on-${kind}`);
        if (cut === name) inside();
        else if (needs <= free(stretches[i + 1])) write(from + long + 2, name, bold ? "bold" : "");
        else if (needs <= free(stretches[i - 1]) && from - 3 - needs >= taken) write(from - 3 - needs, name, bold ? "bold" : "");
        else if (cut.length >= 4) inside();
      });
      out.append(text(0, y + 14, upper(factor.name), "bold"));
      if (!factor.words) {
        // What is read, and its unit: between the two numbers of the axis, which they share the margin with.
        factor.channels[0].split(", ").forEach((words, i) =>
          out.append(titled(text(0, y + 41 + 12 * i, fitted(words, left - 8), "soft"), factor.channels[0])));
      }
      each(WEEKS, (w) => out.append(titled(rect(x(w), y + 2, column, 62, "hit-area"),
        `Week ${w}: ${factor.name} ${label(f, s.regime[f][w])}, week ${s.age[f][w] + 1} of it\n` +
        factor.channels.map((c, i) => `${c}: ${s.values[f][i][w] === null ? DASH : s.values[f][i][w]}`).join("\n"))));
    });
    weekAxis(out, x, column, height - 17, "week");
    return out;
  }

  function tapeTable(s) {
    const heads = ["week"];
    data.factors.forEach((factor) => heads.push(factor.name, ...factor.channels));
    const rows = each(WEEKS, (w) => [w, ...data.factors.flatMap((factor, f) =>
      [`${label(f, s.regime[f][w])} (${s.age[f][w]})`, ...factor.channels.map((_, c) => s.values[f][c][w] === null ? null : String(s.values[f][c][w]))])]);
    return grid(`Tape of seed ${s.seed}: hidden regime (age in weeks) and emitted values`, heads, rows);
  }

  // ---- posteriors

  function drawFilter(s, width) {
    const left = width < 560 ? 118 : 196, right = 8, row = 14, gap = 12;
    const column = (width - left - right) / WEEKS;
    const x = (week) => left + week * column;
    const heights = data.factors.map((factor) => factor.labels.length * row + gap);
    const height = heights.reduce((a, b) => a + b, 4) + 30;
    const out = picture(width, height, `Posteriors of the exact filters, seed ${s.seed}`,
      "Darker means more probable; dots mark the true regime. " + tellFilter(s));
    let y = 4;
    data.factors.forEach((factor, f) => {
      out.append(text(0, y + 11, upper(factor.name), "bold"));
      factor.labels.forEach((name, k) => {
        const top = y + k * row, long = plain(name);
        const bold = Boolean(factor.trouble[k]);
        out.append(titled(text(left - 5, top + 11, fitted(long, left - (k ? 5 : 60), bold), bold ? "end bold" : "soft end"), long));
        for (let w = 0; w < WEEKS; w += 1) {
          const p = s.filter[f][k][w];
          if (p >= 4) {
            out.append(titled(rect(x(w) + 0.5, top + 0.5, column - 1, row - 1, "heat", { "fill-opacity": (p / 1000).toFixed(3) }),
              `Week ${w}: P(${factor.name} ${long}) = ${share(p)}`));
          }
        }
      });
      out.append(rect(left, y, column * WEEKS, factor.labels.length * row, "axis"));
      s.regime[f].forEach((k, w) => {
        const cx = (x(w) + column / 2).toFixed(1), cy = y + k * row + row / 2;
        out.append(svg("circle", { class: "halo", cx, cy, r: 4.2 }), svg("circle", { class: "truth", cx, cy, r: 2.8 }));
      });
      y += heights[f];
    });
    weekAxis(out, x, column, height - 17, "week");
    return out;
  }

  function tellFilter(s) {
    const told = data.factors.map((factor, f) => {
      const mean = s.regime[f].reduce((sum, k, w) => sum + s.filter[f][k][w], 0) / WEEKS / 1000;
      return `${factor.name} ${mean.toFixed(2)}`;
    });
    return `Mean probability of the true regime: ${told.join(", ")}.`;
  }

  function filterTable(s) {
    const heads = ["week"];
    data.factors.forEach((factor, f) => heads.push(`${factor.name}: truth`, ...factor.labels.map((_, k) => label(f, k))));
    const rows = each(WEEKS, (w) => [w, ...data.factors.flatMap((factor, f) =>
      [label(f, s.regime[f][w]), ...factor.labels.map((_, k) => share(s.filter[f][k][w]))])]);
    return grid(`Posteriors of seed ${s.seed} after each week's readings`, heads, rows);
  }

  // ---- books

  const weekOf = (run, name, w) => (run.decision[name] ? run.decision[name][w] : name === "qty" ? 0 : null);

  function tellOrder(run, w) {
    // The decision that took effect in week w + 1, in words.
    const d = (name, otherwise) => (run.decision[name] ? run.decision[name][w] : otherwise);
    const parts = [];
    const qty = d("qty", 0);
    parts.push(qty ? `${qty} from ${data.words.supplier[d("supplier", -1)]} via ${data.words.route[d("route", -1)]}` : "nothing");
    const action = d("action", 0);
    if (action) {
      const terms = d("terms", 0);
      parts.push(`${data.words.action[action - 1]} ${data.words.supplier[d("contract_supplier", -1)]}` +
        (terms ? ` (${data.words.terms[terms - 1]})` : ""));
    }
    if (d("lock_weeks", 0)) parts.push(`lock freight ${d("lock_weeks", 0)} weeks`);
    if (d("air", 0)) parts.push(`fly in ${d("air", 0)}`);
    for (const name of ["inspect", "briefing", "audit"]) if (d(name, 0)) parts.push(name);
    return parts.join("; ");
  }

  const groupTotals = (run) => data.groups.map(([, items]) => each(data.horizon, (w) =>
    items.reduce((sum, item) => sum + (run.bill[item] ? run.bill[item][w] : 0), 0)));

  function scales(runs) {
    // One scale for all books of a seed, so that they can be compared by eye.
    const most = (series) => Math.max(1, ...series);
    return {
      units: most(runs.flatMap((r) => [...r.books.inventory, ...r.books.on_order])),
      ordered: most(runs.flatMap((r) => each(data.horizon, (w) => weekOf(r, "qty", w) + (weekOf(r, "air", w) || 0)))),
      lost: most(runs.flatMap((r) => r.books.unmet)),
      bill: billScale(runs.flatMap((r) => r.weekly)),
    };
  }

  function billScale(bills) {
    // Where a few weeks dwarf all others, the scale is that of the others, and the bars of the few are broken.
    const sorted = [...bills].sort((a, b) => b - a);
    const rest = sorted[Math.ceil(0.05 * sorted.length)];
    const marks = ticks(0, Math.max(100, sorted[0] > 3 * rest ? 1.3 * rest : sorted[0]) / 100, 4);
    const top = 100 * marks[marks.length - 1];
    return { marks, top, broken: sorted[0] > top };
  }

  function tellBooks(run) {
    const sum = (series) => series.reduce((a, b) => a + b, 0);
    const dry = run.books.unmet.filter((u) => u > 0).length;
    const mean = sum(run.books.inventory) / data.horizon;
    return `${money(run.cost)} in ${data.horizon} weeks. Mean shelf ${mean.toFixed(0)} units; ${dry ? `${sum(run.books.unmet)} units` : "no unit"} of demand lost` +
      `${dry ? ` in ${dry} ${dry === 1 ? "week" : "weeks"}` : ""}; ${sum(run.decision.qty)} units ordered.`;
  }

  function drawBooks(s, run, scale, width) {
    const left = 46, right = 8, tall = [104, 92, 118], gap = 20, top = 16;
    const column = (width - left - right) / WEEKS;
    const x = (week) => left + week * column;
    const height = top + tall.reduce((a, b) => a + b + gap, 0) + 16;
    const out = picture(width, height, `Books of ${run.name}, seed ${s.seed}`, tellBooks(run));
    const stressed = each(WEEKS, (w) => data.factors.some((factor, f) => factor.trouble[s.regime[f][w]]));
    const starts = [top, top + tall[0] + gap, top + tall[0] + tall[1] + 2 * gap];
    starts.forEach((y, i) => {
      for (const [first, last, on] of runsOf(stressed)) {
        if (on) out.append(rect(x(first), y, (last - first + 1) * column, tall[i], "stress", { "fill-opacity": 0.55 }));
      }
    });
    // Shelf and pipeline.
    const marks = ticks(0, scale.units, 3);
    const at = (v) => starts[0] + tall[0] - (v / marks[marks.length - 1]) * (tall[0] - 6);
    for (const mark of marks) {
      out.append(line(left, at(mark), width - right, at(mark), "axis"), text(left - 5, at(mark) + 4, String(mark), "soft end"));
    }
    const shelf = run.books.inventory.map((v, i) => [x(i + 1) + column / 2, at(v)]);
    out.append(svg("path", { class: "area", d: `${path(shelf)}L${shelf[shelf.length - 1][0].toFixed(1)} ${at(0)}L${shelf[0][0].toFixed(1)} ${at(0)}Z` }),
      svg("path", { class: "one", d: path(shelf) }),
      svg("path", { class: "two", d: path(run.books.on_order.map((v, i) => [x(i + 1) + column / 2, at(v)])) }),
      text(left, starts[0] - 5, "Units on the shelf and at sea, end of week", "bold"));
    // Orders up, lost demand down.
    const ups = ticks(0, scale.ordered, 2), up = ups[ups.length - 1];
    const downs = ticks(0, scale.lost, 2), down = downs[downs.length - 1];
    const zero = starts[1] + 6 + (tall[1] - 12) * 0.6;
    const high = (v) => (v / up) * (zero - starts[1] - 4), deep = (v) => (v / down) * (starts[1] + tall[1] - zero - 4);
    out.append(text(left, starts[1] - 5, "Ordered (up), demand lost (down), units", "bold"));
    for (const [y, word] of [[zero - high(up), String(up)], [zero, "0"], [zero + deep(down), String(down)]]) {
      out.append(line(left, y, width - right, y, word === "0" ? "strong-axis" : "axis"), text(left - 5, y + 4, word, "soft end"));
    }
    each(data.horizon, (i) => {
      const sea = weekOf(run, "qty", i), air = weekOf(run, "air", i) || 0, lost = run.books.unmet[i];
      const from = x(i + 1) + column * 0.18, wide = column * 0.64;
      if (sea) out.append(rect(from, zero - high(sea), wide, high(sea), "bar"));
      if (air) out.append(rect(from, zero - high(sea) - high(air), wide, high(air), "air"));
      if (lost) out.append(rect(from, zero, wide, Math.max(deep(lost), 1), "lost"), stripes(from, zero, wide, deep(lost)));
    });
    // The bill.
    const bill = (v) => (Math.min(v, scale.bill.top) / scale.bill.top) * (tall[2] - 6);
    const floor = starts[2] + tall[2];
    out.append(text(left, starts[2] - 5, "Weekly bill by component, $", "bold"));
    for (const mark of scale.bill.marks) {
      const y = floor - bill(100 * mark);
      out.append(line(left, y, width - right, y, "axis"), text(left - 5, y + 4, mark.toLocaleString("en"), "soft end"));
    }
    const totals = groupTotals(run);
    const amounts = [], ends = [];  // beside broken bars, each in the first row where it overlaps none
    each(data.horizon, (i) => {
      let y = floor, sum = 0;
      totals.forEach((of, g) => {
        const below = bill(sum);
        sum += Math.max(of[i], 0);
        const tallness = bill(sum) - below;
        y -= tallness;
        if (tallness > 0.2) out.append(rect(x(i + 1) + column * 0.12, y, column * 0.76, tallness, `segment bill-${g}`));
        if (data.groups[g][1].includes("stockout")) out.append(stripes(x(i + 1) + column * 0.12, y, column * 0.76, tallness));
      });
      if (sum > scale.bill.top) {
        const half = column / 2, middle = x(i + 1) + half, amount = `$${Math.round(sum / 100).toLocaleString("en")}`;
        const from = Math.min(middle + half, width - wide(amount, true) - 2);
        let row = 0;
        while (ends[row] > from) row += 1;
        ends[row] = from + wide(amount, true) + 4;
        out.append(svg("path", { class: "break", d: `M${(middle - half).toFixed(1)} ${starts[2] + 15}l${half.toFixed(1)} -5l${half.toFixed(1)} 5` }));
        amounts.push(text(from.toFixed(1), starts[2] + 9 + 12 * row, amount, "bold over"));
      }
      const told = totals.map((of, g) => (of[i] ? `${data.groups[g][0]} ${money(of[i])}` : "")).filter(Boolean);
      out.append(titled(rect(x(i + 1), top, column, floor - top, "hit-area"),
        `Week ${i + 1}: ${money(run.weekly[i])}\n${told.join("\n")}\nshelf ${run.books.inventory[i]}, at sea ${run.books.on_order[i]}, ` +
        `lost ${run.books.unmet[i]}\nordered in week ${i}: ${tellOrder(run, i)}`));
    });
    out.append(...amounts);
    weekAxis(out, x, column, floor + 14, "week");
    return out;
  }

  function booksTable(s, run) {
    const items = data.items.filter((item) => run.bill[item]);
    const heads = ["week", "decided the week before", "arrived by sea", "shelf", "at sea", "lost", ...items.map((i) => `${plain(i)}, $`), "week's bill, $"];
    const rows = each(data.horizon, (w) => [w + 1, tellOrder(run, w), String(run.books.arrived[w]), String(run.books.inventory[w]),
      String(run.books.on_order[w]), String(run.books.unmet[w]), ...items.map((i) => dollars(run.bill[i][w])), dollars(run.weekly[w])]);
    const sum = (series) => series.reduce((a, b) => a + b, 0);
    rows.push(["all", "", String(sum(run.books.arrived)), "", "", String(sum(run.books.unmet)), ...items.map((i) => dollars(sum(run.bill[i]))), dollars(run.cost)]);
    return grid(`Books of ${run.name}, seed ${s.seed}; every amount is rounded to the cent by itself`, heads, rows);
  }

  // ---- what was named

  function drawNamed(s, shown, width) {
    const left = width < 560 ? 74 : 132, right = 8, row = 13, head = 18, gap = 8;
    const column = (width - left - right) / WEEKS;
    const x = (week) => left + week * column;
    const tall = head + (data.factors.length + 1) * row + gap;
    const height = shown.length * tall + 30;
    const out = picture(width, height, `What the rationales name, seed ${s.seed}`, shown.map((a) => tellNamed(s, a)).join(" "));
    shown.forEach((agent, i) => {
      const y = i * tall;
      out.append(text(0, y + 13, `${agent.name}, ${money(agent.cost)}`, "bold"));
      data.factors.forEach((factor, f) => {
        const from = y + head + f * row;
        out.append(text(left - 5, from + 10, factor.name, "soft end"));
        for (const [first, last, k] of runsOf(s.regime[f])) {
          const kind = kindOf(f, k);
          if (kind !== "calm") out.append(rect(x(first), from, (last - first + 1) * column, row, kind));
        }
        out.append(line(left, from, width - right, from, "axis"));
        agent.named.forEach((mask, w) => {
          if (mask > 0 && mask & (1 << f)) {
            out.append(titled(svg("circle", { class: "named", cx: (x(w) + column / 2).toFixed(1), cy: from + row / 2, r: 3.4 }),
              `Week ${w}: names ${factor.name}, which is ${label(f, s.regime[f][w])}`));
          }
        });
      });
      const from = y + head + data.factors.length * row;
      out.append(text(left - 5, from + 10, "stockout", "soft end"), line(left, from, width - right, from, "strong-axis"));
      agent.stockout.forEach((dry, w) => {
        if (dry) {
          const cx = x(w) + column / 2, cy = from + row / 2 + 1;
          out.append(svg("path", { class: "cross", d: `M${(cx - 3).toFixed(1)} ${cy - 3}l6 6m0 -6l-6 6` }));
        }
      });
    });
    weekAxis(out, x, column, height - 17, "week");
    return out;
  }

  function tellNamed(s, agent) {
    let right = 0, wrong = 0;
    agent.named.forEach((mask, w) => data.factors.forEach((factor, f) => {
      if (mask > 0 && mask & (1 << f)) { if (factor.trouble[s.regime[f][w]]) right += 1; else wrong += 1; }
    }));
    const dry = agent.stockout.filter(Boolean).length;
    return `${agent.name}: ${right} right names, ${wrong} others, ${dry} weeks with a stockout.`;
  }

  const namesOf = (mask) => (mask < 0 ? null : data.factors.filter((_, f) => mask & (1 << f)).map((factor) => factor.name).join(", ") || "none");

  function namedTable(s, shown) {
    const heads = ["week", "under stress", ...shown.flatMap((a) => [`${a.name}: names`, "stockout"])];
    const rows = each(WEEKS, (w) => [w, data.factors.filter((factor, f) => factor.trouble[s.regime[f][w]]).map((f) => f.name).join(", ") || "none",
      ...shown.flatMap((a) => [namesOf(a.named[w]), a.stockout[w] ? "yes" : ""])]);
    return grid(`Labels and stockouts of seed ${s.seed}; a dash where no label is scored`, heads, rows, "words");
  }

  const namedKeys = () => keys([swatch(rect(0, 1, 26, 12, "stress")), "truly under stress"], [swatch(rect(0, 1, 26, 12, "brewing")), "brewing"],
    [swatch(svg("circle", { class: "named", cx: 13, cy: 7, r: 4 })), "named in the week's rationale"],
    [swatch(svg("path", { class: "cross", d: "M10 4l6 6m0 -6l-6 6" })), "stockout by the books"]);

  // ---- week by week: what was written, what was true, what could be known

  function wordsTable(s, run) {
    const rows = each(data.horizon, (w) => {
      const list = el("ul");
      data.factors.forEach((factor, f) => {
        const k = s.regime[f][w];
        const beliefs = factor.name === "supplier" ? run.supplier : s.filter[f];
        const p = beliefs.reduce((sum, series, j) => sum + (factor.trouble[j] ? series[w] : 0), 0);
        const named = run.named && run.named[w] > 0 && Boolean(run.named[w] & (1 << f));
        const graded = run.named && run.named[w] >= 0;
        const stated = run.stated ? run.stated[w][f] : null;
        const stress = Boolean(factor.trouble[k]);
        if (!stress && !factor.brewing[k] && p < 100 && !named && !(stated >= 100)) return;
        const verdict = !graded ? "" : named ? (stress ? "named" : factor.brewing[k] ? "named, brewing" : "named, not so") : stress ? "not named" : "";
        list.append(el("li", {}, el("span", { class: stress ? "hit" : null }, `${factor.name}: ${label(f, k)}`),
          `; filter ${share(Math.min(p, 1000))}`, stated === null || stated === undefined ? "" : `, agent ${share(stated)}`, verdict ? ` \u2014 ${verdict}` : ""));
      });
      if (!list.childElementCount) list.append(el("li", {}, "nothing under stress, brewing or suspected"));
      return [w, run.rationale ? run.rationale[w] : null, list, w === 0 ? null : String(run.books.unmet[w - 1]), tellOrder(run, w)];
    });
    const frame = grid(`What ${run.name} wrote on seed ${s.seed}, beside the truth and the exact filter's probability of stress`,
      ["week", "rationale", "truth; P(stress); label", "demand lost in this week", "decided"], rows, "text");
    frame.firstElementChild.classList.add("words");
    for (const row of frame.querySelectorAll("tbody tr")) row.cells[1].setAttribute("dir", "auto");
    return frame;
  }

  // ---- an episode

  function episode(s) {
    if (s.withheld) {
      return [el("p", {}, "An episode on this seed is not finished. Until it is, nothing hidden of its tape is told here: no truth, no " +
        "posterior, no books of others on it. Finish it, or make the page without its journal.")];
    }
    const oracle = s.runs.find((run) => run.who === "oracle");
    const spread = s.oracle.se === null ? "" : ` (s.e. ${money(s.oracle.se)}, runs from ${money(s.oracle.min)} to ${money(s.oracle.max)})`;
    const scale = scales(s.runs);
    const parts = [
      el("p", {}, `${tellStress(s)} The oracle's books are of run 1 of ${data.oracle_runs}, ${money(oracle.cost)}; the mean of all its runs is ` +
        `${money(s.oracle.mean)}${spread}. The floor costs ${money(s.floor)}.`),
      el("h4", {}, "The tape"),
      figure("What truly happened, and what could be read of it.", "The bar over each strip names the hidden regime.", (w) => drawTape(s, w),
        keys([swatch(rect(0, 1, 26, 12, "band-stress")), "under stress"], [swatch(rect(0, 1, 26, 12, "band-brewing")), "brewing"],
          [swatch(line(0, 7, 26, 7, "one")), "reading"], [swatch(line(0, 7, 26, 7, "two")), "forecast or outlook for the same quantity"]),
        () => tapeTable(s)),
      el("h4", {}, "What could be known"),
      figure("Posteriors of the exact filters after each week's readings, with the truth over them.",
        `Filters: ${data.filter}; spot's fill is read in the weeks in which the oracle's run 1 had ordered from it. Bold regimes are stress.`,
        (w) => drawFilter(s, w),
        keys([swatch(rect(0, 1, 26, 12, "heat", { "fill-opacity": 1 })), "probability 1"], [swatch(rect(0, 1, 26, 12, "heat", { "fill-opacity": 0.3 })), "0.3"],
          [swatch(svg("circle", { class: "halo", cx: 13, cy: 7, r: 4.6 }), svg("circle", { class: "truth", cx: 13, cy: 7, r: 3.2 })), "the true regime"]),
        () => filterTable(s)),
      el("h4", {}, "The books"),
      keys([swatch(rect(0, 1, 26, 12, "area"), line(0, 2, 26, 2, "one")), "shelf"], [swatch(line(0, 7, 26, 7, "two")), "at sea"],
        [swatch(rect(8, 1, 10, 12, "bar")), "ordered by sea"], [swatch(rect(8, 1, 10, 12, "air")), "flown in"], [swatch(rect(8, 1, 10, 12, "lost"), stripes(8, 1, 10, 12)), "demand lost"],
        [swatch(rect(0, 1, 26, 12, "stress")), "any factor under stress"]),
      keys(["Bill, from the bottom up:", ""], ...data.groups.map(([name, items], g) =>
        [swatch(rect(4, 1, 18, 12, `segment bill-${g}`), items.includes("stockout") ? stripes(4, 1, 18, 12) : null), name])),
    ];
    if (scale.bill.broken) {
      parts.push(el("p", { class: "note" }, "A bar that is broken near its top is taller than the scale; the week's bill stands beside it."));
    }
    parts.push(el("div", { class: "pair" }, ...s.runs.map((run) => figure(`${upper(run.name)}${run.who === "agent" ? `, run ${run.repeat}` : ""}:`,
      tellBooks(run) + (run.privileged ? " It was shown hidden states." : ""), (w) => drawBooks(s, run, scale, w), null, () => booksTable(s, run)))));
    const agents = s.runs.filter((run) => run.who === "agent");
    const named = agents.filter((run) => run.named).map((run) => ({ name: `${run.name}, run ${run.repeat}`, cost: run.cost, named: run.named,
      stockout: [0, ...run.books.unmet.map((u) => (u > 0 ? 1 : 0))] }));
    if (named.length) {
      parts.push(el("h4", {}, "What agents named"),
        figure("Labels of the weekly rationales over the truth.", "", (w) => drawNamed(s, named, w), namedKeys(), () => namedTable(s, named)));
    }
    for (const run of agents) {
      if (run.rationale) parts.push(lazy(`Week by week: what ${run.name}, run ${run.repeat}, wrote`, "data", () => wordsTable(s, run)));
    }
    if (s.published.length) {
      parts.push(el("h4", {}, "The four published agents"),
        figure("Labels of their weekly rationales over the truth, and their stockouts.", "Their books and rationales are not public.",
          (w) => drawNamed(s, s.published, w), namedKeys(), () => namedTable(s, s.published)));
    }
    return parts;
  }

  const bySeed = new Map(data.seeds.map((s) => [s.seed, s]));
  const unfolded = Array.from(document.querySelectorAll("details.episode"));

  function fill(node) {
    const inside = node.lastElementChild;
    if (!inside.childElementCount) inside.append(...episode(bySeed.get(Number(node.id.slice("seed-".length)))));
    soon();
  }

  for (const node of unfolded) node.addEventListener("toggle", () => { if (node.open) fill(node); });
  const every = (open) => () => unfolded.forEach((node) => { if (!node.hidden) node.open = open; });
  const buttons = [["Unfold those shown", true], ["Fold all", false]].map(([words, open]) => {
    const button = el("button", { type: "button" }, words);
    button.addEventListener("click", every(open));
    return button;
  });
  const controls = filterable("Episodes", unfolded, "episodes", true, buttons);
  document.getElementById("episodes").before(controls.tools);

  function follow() {
    // A link to a seed unfolds it, even if a filter hides it.
    const node = /^#seed-\d+$/.test(window.location.hash) ? document.getElementById(window.location.hash.slice(1)) : null;
    if (!node) return;
    if (node.hidden) controls.clear();
    node.open = true;
    fill(node);
    node.scrollIntoView();
    node.firstElementChild.focus({ preventScroll: true });
  }
  window.addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    // The same link a second time changes no hash.
    const link = event.target.closest ? event.target.closest('a[href^="#seed-"]') : null;
    if (link && link.getAttribute("href") === window.location.hash) follow();
  });

  // ---- where every agent stands

  function drawForest(width) {
    const shown = data.skill.filter((a) => a.n && a.mean !== null);
    const left = Math.min(200, width * 0.36), right = 54, row = 26, top = 26;
    const ends = shown.flatMap((a) => [a.mean, a.median, a.low, a.high]).filter((v) => v !== null);
    const marks = ticks(Math.min(-0.2, ...ends), Math.max(1.05, ...ends), 6);
    const low = marks[0], high = marks[marks.length - 1];
    const x = (v) => left + ((v - low) / (high - low)) * (width - left - right);
    const height = top + shown.length * row + 34;
    const told = shown.map((a) => `${a.agent}: mean ${a.mean.toFixed(2)}, median ${a.median.toFixed(2)}, ${a.n} seeds`);
    const out = picture(width, height, "Skill of every agent over all seeds", `${told.join("; ")}. The table of skill has the same numbers.`);
    for (const mark of marks) {
      out.append(line(x(mark), top, x(mark), height - 32, "axis"), text(x(mark), height - 18, String(mark).replace("-", "\u2212"), "soft middle"));
    }
    const crowded = x(1) - x(0) < wide("oracle", true) + 4;
    for (const [at, word, side] of [[0, "floor", "end"], [1, "oracle", ""]]) {
      out.append(line(x(at), top - 6, x(at), height - 32, "strong-axis"),
        text(x(at), top - 11, word, `bold ${crowded ? side : "middle"}`));
    }
    shown.forEach((agent, i) => {
      const y = top + i * row + row / 2;
      out.append(titled(text(left - 10, y + 4, fitted(agent.agent, left - 12), "end"), agent.agent));
      if (agent.low !== null) out.append(line(x(agent.low), y, x(agent.high), y, "one"));
      out.append(svg("path", { class: "cross", d: `M${x(agent.median).toFixed(1)} ${y - 6}v12` }),
        svg("circle", { class: "dot", cx: x(agent.mean).toFixed(1), cy: y, r: 5 }),
        text(width - right + 8, y + 4, agent.mean.toFixed(2).replace("-", "\u2212"), "bold"));
    });
    out.append(text(x((low + high) / 2), height - 3, "skill", "soft middle"));
    return out;
  }

  if (data.skill.some((a) => a.n && a.mean !== null)) {
    document.getElementById("forest").append(el("h3", {}, "Where the agents stand"),
      figure("Skill over all scoreable seeds.", "Seed by seed and by profile in the tables below.", drawForest,
        keys([swatch(svg("circle", { class: "dot", cx: 13, cy: 7, r: 5 })), "mean"], [swatch(line(0, 7, 26, 7, "one")), "95 % bootstrap interval"],
          [swatch(svg("path", { class: "cross", d: "M13 1v12" })), "median"]), null));
  }

  let pending = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(pending);
    pending = window.setTimeout(redraw, 150);
  });
  window.addEventListener("beforeprint", () => redraw(true));
  window.addEventListener("afterprint", () => redraw());
  redraw();
  follow();
})();
