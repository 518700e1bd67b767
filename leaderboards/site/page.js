"use strict";
// Parts of every page. All text is inserted as text, never as markup: the name of a record may contain anything.

const NONE = "–";

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// title: of its files; heads: texts or cells, the first column stays visible; rows: lists of cells or texts
function table(title, heads, rows, kind = "wide") {
  const cell = (tag) => (content, index) => {
    const node = content instanceof Node && content.tagName?.toLowerCase() === tag ? content : el(tag, {}, content);
    if (index === 0) node.classList.add("row");
    return node;
  };
  const head = el("thead", {}, el("tr", {}, heads.map(cell("th"))));
  const body = el(
    "tbody",
    {},
    rows.map((row) => el("tr", {}, row.map(cell("td")))),
  );
  const grid = el("table", {}, head, body);
  const box = el("div", { class: kind, role: "region", "aria-label": title, tabindex: 0 }, grid);
  const mark = () => box.classList.toggle("cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  box.addEventListener("scroll", mark);
  new ResizeObserver(mark).observe(box);
  const files = downloads(
    title,
    () => tableLines(grid),
    () => tablePicture(box),
  );
  return el("div", {}, box, files);
}

function shortText(text) {
  return el("td", { class: "text" }, text);
}

function longText(text) {
  return el("td", { class: "text long" }, text);
}

// places: how many decimals; null: three digits.
function formatNumber(value, places) {
  if (value === null || value === undefined || places === null) return digits(value);
  const shown = value.toFixed(places);
  return Number(shown) === 0 ? shown.replace("-", "") : shown;
}

// The best and the worst place of a rank.
function interval([best, worst]) {
  return best === worst ? digits(best) : `${digits(best)}-${digits(worst)}`;
}

function digits(value) {
  return value === null || value === undefined ? NONE : String(Number(value.toPrecision(3)));
}

function bytes(count) {
  if (count === null || count === undefined) return NONE;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 999.5) return `${digits(count)} ${unit}`;
    count /= 1000;
  }
  return `${digits(count)} TB`;
}

function withSpread(cell, places) {
  if (!cell) return [NONE];
  const [average, deviation] = cell;
  if (deviation === null) return [formatNumber(average, places)];
  return [formatNumber(average, places), el("span", { class: "spread" }, ` ± ${formatNumber(deviation, places)}`)];
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function spread(values) {
  if (values.length < 2) return null;
  const average = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - average) ** 2, 0) / (values.length - 1));
}

function address(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

function choose(label, value, choices, change) {
  const options = choices.map(([key, text]) => el("option", { value: key, selected: key === value }, text));
  return el(
    "label",
    {},
    label,
    el("select", { "data-key": label, onchange: (event) => change(event.target.value) }, options),
  );
}

function tick(label, checked, change) {
  const box = el("input", { type: "checkbox", checked, onchange: (event) => change(event.target.checked) });
  return el("label", { class: "check" }, box, label);
}

function lookup(object, key) {
  return Object.hasOwn(object, key) ? object[key] : undefined;
}
