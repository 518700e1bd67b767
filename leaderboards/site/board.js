"use strict";
// The board of a scenario: a table to sort and narrow down, and a comparison of its ticked rows.

const FIRST = 4; // scores that are shown at once
const view = {
  sort: ["rank", 1],
  text: "",
  method: "",
  more: false,
  metric: "monitor",
  against: "round",
  base: "",
  beside: "", // the row that all others are set beside
  ticked: new Map(),
};

function boardPage(scenario, beside) {
  const names = Object.keys(DATA.scenarios);
  if (!names.length) return [el("h1", {}, "Board"), el("p", {}, "No run has been recorded yet.")];
  const size = (name) => DATA.scenarios[name].rows.length;
  const drawn = (name) => DATA.scenarios[name].rows.filter((row) => measuredCurves(name, row, "monitor").length).length;
  const most = (a, b) => drawn(b) - drawn(a) || size(b) - size(a);
  const here = names.includes(scenario) ? scenario : [...names].sort(most)[0];
  const { setting, renamed, rows, missing, left, compared, gains, encoders, submissions, machines } = DATA.scenarios[here];
  const metrics = Object.entries(METRICS).filter(([key]) => rows.some((row) => measuredCurves(here, row, key).length));
  if (!metrics.some(([key]) => key === view.metric)) view.metric = "monitor";
  if (!rows.some((row) => row.method === view.method)) view.method = "";
  if (beside) view.beside = beside;
  if (!rows.some((row) => row.rank && row.row === view.beside)) view.beside = "";
  if (!view.ticked.has(here)) view.ticked.set(here, new Set(rows.slice(0, 5).map((row) => row.row)));
  const ticked = view.ticked.get(here);
  const charts = el("div", { class: "charts" });
  const drawCharts = () => charts.replaceChildren(...comparison(here, rows, ticked, compared, drawCharts));
  const [controls, shown] = boardTable(here, rows, ticked, drawCharts);
  const scenarios = names.map((name) => [name, `${name} (${size(name)})`]);
  controls.prepend(
    choose("scenario", here, scenarios, (name) => {
      location.hash = address("board", name);
    }),
  );
  drawCharts();
  const which = choose("curves of", view.metric, metrics, (name) => {
    view.metric = name;
    drawCharts();
  });
  const against = choose("against", view.against, Object.entries(AGAINST), (name) => {
    view.against = name;
    drawCharts();
  });
  const read =
    "Mean ± spread over seeds after the last round. Rows are ordered and ranked by the linear probe; where a row lacks a " +
    "seed, by its mean as estimated for all seeds. A row of rank 2-9 may stand anywhere from second to ninth: one row " +
    "is better than it, and as many rows are worse as there are places after the ninth, by a test of all pairs at 5 %. " +
    "Rows of fewer than three seeds, controls and a single client are not ranked; untrained is the floor. ↓ is below it, or below the untrained encoder of the row's architecture where the board has one. " +
    "Bytes and client seconds are per client and round.";
  const apart = compared && `${formatNumber(compared.typical, 1)} points tell two rows apart, by the median of all pairs.`;
  return [
    el("h1", {}, here),
    scenario && here !== scenario ? el("p", {}, `No scenario is called ${scenario}; this is ${here}.`) : null,
    setting ? el("p", { class: "quiet" }, `${setting}.`) : null,
    renamed ? el("p", { class: "quiet" }, `Of the names, ${renamed}.`) : null,
    controls,
    shown,
    el("p", { class: "quiet" }, read),
    encoders ? el("p", { class: "quiet" }, encoders) : null,
    submissions ? el("p", { class: "quiet" }, submissions) : null,
    machines ? el("p", { class: "quiet" }, machines) : null,
    compared ? el("p", { class: "quiet" }, apart) : null,
    left.length ? el("p", { class: "quiet" }, `Not finished, and left out: ${left.join("; ")}.`) : null,
    missing.length ? el("p", { class: "quiet" }, `Missing: ${missing.join("; ")}.`) : null,
    el("h2", {}, "Comparison"),
    el("p", { class: "quiet" }, "The rows that are ticked above, also where the table leaves them out now."),
    metrics.length ? el("div", { class: "controls" }, which, against) : null, // without a curve there is no choice
    charts,
    additions(gains),
    averages(),
  ];
}

function columns(rows) {
  const column = (key, title, value, show, extra) => ({
    key,
    title,
    value,
    show: (row) => show(value(row), row),
    ...extra,
  });
  const scores = DATA.columns.map(({ key, title, digits: places }, index) =>
    column(
      key,
      title,
      (row) => (row.cells[key] ? row.cells[key][0] : null),
      (_, row) => ofEncoders(row, key, places, [
        ...withSpread(row.cells[key], places),
        row.below.includes(key) ? " ↓" : null,
      ]),
      { more: index >= FIRST },
    ),
  );
  const up = { up: true };
  const all = [
    column(
      "rank",
      "rank",
      (row) => (rows.some((row) => row.rank) ? rows.indexOf(row) : null),
      (_, row) => (row.rank ? interval(row.rank) : row.unranked || NONE),
      up,
    ),
    column(
      "beside",
      `beside ${view.beside}`,
      (row) => besideChosen(rows, row),
      (_, row) => besideChosen(rows, row) || NONE,
    ),
    ...scores,
    column("bytes_up", "bytes up", (row) => row.bytes_up, bytes, { ...up, raw: true }),
    column("bytes_down", "bytes down", (row) => row.bytes_down, bytes, { ...up, raw: true }),
    column("flops", "GFLOP of a client, a round", (row) => row.flops && row.flops / 1e9, digits, { ...up, raw: true }),
    column("memory", "memory of a client", (row) => row.memory, bytes, { ...up, raw: true }),
    column("client_seconds", "client seconds", (row) => row.client_seconds, digits, { ...up, raw: true }),
    column("images", "images", (row) => row.images, (images) => images.toLocaleString("en"), {
      ...up,
      more: true,
      raw: true,
    }),
    column(
      "server_images",
      "images of the server",
      (row) => row.server_images || null,
      (images, row) => (row.server_images === null ? "?" : images ? images.toLocaleString("en") : NONE),
      { ...up, more: true },
    ),
    column(
      "epsilon",
      "epsilon",
      (row) => row.epsilon,
      (spent, row) => (spent === null ? NONE : `${digits(spent)} (${row.covers.join(", ")})`),
      up,
    ),
    column(
      "activity",
      "activity",
      (row) => (Object.keys(row.activity).length ? Math.max(...Object.values(row.activity).map(([mean]) => mean)) : null),
      (_, row) => activity(row),
    ),
    column(
      "made",
      "made at",
      (row) => row.dates[1],
      (_, row) => [row.commits.join(", "), el("small", {}, `${row.dates[1].slice(0, 10)}, ${row.hardware.join("; ")}`)],
      { more: true },
    ),
  ];
  return all.filter((column) => (view.more || !column.more) && rows.some((row) => column.value(row) !== null));
}

// How much what a row adds moves something; ∅ where it hardly acts. A tooltip says what is measured.
function activity(row) {
  const found = Object.entries(row.activity);
  if (!found.length) return NONE;
  const words = found.map(([name, [mean]]) => `${name.replaceAll("_", " ")} ${digits(mean)}`).join(", ");
  const title = found.map(([name, [, bound, measures]]) => `${name}: ${measures}; hardly acts below ${bound}`).join(". ");
  return el("span", { title }, row.idle ? `${words} ∅ hardly acts` : words);
}

// A score of a row; of several encoders it is named the mean, with the worst beside it.
function ofEncoders(row, key, places, score) {
  const worst = row.cells[`${key}_worst`];
  if (!worst) return score;
  return ["mean ", ...score, ", ", el("span", { class: "worst" }, `worst ${formatNumber(worst[0], places)}`)];
}

// What a row is to the one that was chosen: null for rows without a rank, and where none is chosen.
function besideChosen(rows, row) {
  const chosen = rows.find(({ row: name }) => name === view.beside);
  if (!chosen || !row.rank) return null;
  if (row === chosen) return "this row";
  if (chosen.better.includes(row.row)) return "better";
  return chosen.worse.includes(row.row) ? "worse" : "not told apart";
}

function sorted(rows, shown) {
  const [key, sign] = view.sort;
  const value = key === "row" ? (row) => row.row : shown.find((column) => column.key === key)?.value;
  if (!value) return rows; // the column is not shown: the order of the board
  return [...rows].sort((a, b) => {
    const [first, second] = [value(a), value(b)];
    if (first === null || second === null) return (first === null) - (second === null); // missing values come last
    return sign * (typeof first === "string" ? first.localeCompare(second) : first - second);
  });
}

// The controls over the table, and the table; only the table is drawn again, so that the keyboard focus stays.
function boardTable(scenario, rows, ticked, changed) {
  const holder = el("div", {});
  const count = el("span", { class: "quiet", role: "status" });
  const heading = (key, title, up) => {
    const [sort, sign] = view.sort;
    const turn = () => {
      view.sort = [key, key === view.sort[0] ? -view.sort[1] : up ? 1 : -1];
      draw();
      holder.querySelector(`[data-key="${key}"]`).focus();
    };
    const order = key === sort ? (sign > 0 ? "ascending" : "descending") : null;
    return el(
      "th",
      { scope: "col", "aria-sort": order },
      el("button", { type: "button", "data-key": key, onclick: turn }, title),
    );
  };
  const line = (row, shown) => {
    const change = (event) => {
      ticked[event.target.checked ? "add" : "delete"](row.row);
      changed();
    };
    const box = el("input", {
      type: "checkbox",
      "aria-label": `compare ${row.row}`,
      checked: ticked.has(row.row),
      onchange: change,
    });
    const run = (seed) => address("run", scenario, row.row, `seed${seed}`);
    const seeds = row.seeds.map((seed) =>
      el("a", { class: "seed", href: run(seed), "aria-label": `${row.row} seed ${seed}` }, String(seed)),
    );
    const name = [el("a", { href: run(row.seeds[0]) }, row.shown), el("small", {}, row.objective)];
    return [
      el("td", { "data-csv": row.row }, box, el("span", {}, name)),
      ...shown.map((column) => el("td", { "data-csv": column.raw ? column.value(row) : null }, column.show(row))),
      el("td", { "data-csv": row.seeds.join(" ") }, seeds),
    ];
  };
  const draw = () => {
    const shown = columns(rows);
    const matches = (row) =>
      (!view.method || row.method === view.method) &&
      `${row.row} ${row.objective}`.toLowerCase().includes(view.text.toLowerCase());
    const filtered = rows.filter(matches);
    const heads = [heading("row", "row", true), ...shown.map(({ key, title, up }) => heading(key, title, up)), "seeds"];
    const across = holder.querySelector(".wide")?.scrollLeft || 0;
    holder.replaceChildren(
      table(
        "board",
        heads,
        sorted(filtered, shown).map((row) => line(row, shown)),
      ),
    );
    holder.querySelector(".wide").scrollLeft = across;
    count.textContent = filtered.length === rows.length ? `${rows.length} rows` : `${filtered.length} of ${rows.length} rows`;
  };
  const ranked = rows.filter((row) => row.rank).map((row) => [row.row, row.row]);
  const methods = [...new Set(rows.map((row) => row.method))].sort().map((name) => [name, name]);
  const find = el("input", {
    type: "search",
    value: view.text,
    oninput: (event) => {
      view.text = event.target.value;
      draw();
    },
  });
  draw();
  return [
    el(
      "div",
      { class: "controls" },
      el("label", {}, "find a row", find),
      choose("method", view.method, [["", "all"], ...methods], (name) => {
        view.method = name;
        draw();
      }),
      ranked.length > 1
        ? choose("set beside", view.beside, [["", "none"], ...ranked], (name) => {
            view.beside = name;
            history.replaceState(null, "", address("board", scenario, name)); // so that the choice can be sent on
            draw();
          })
        : null,
      tick("all scores", view.more, (checked) => {
        view.more = checked;
        draw();
      }),
      count,
    ),
    holder,
  ];
}

// What rows add to those they build on, tested together, seed by seed.
function additions(gains) {
  if (!gains.length) return null;
  const lines = gains.map(([row, base, points, interval, p, verdict, within, unlike]) => [
    row,
    shortText(base),
    formatNumber(points, 1),
    interval,
    formatNumber(p, 3),
    shortText(verdict),
    formatNumber(within, 1),
    longText(unlike),
  ]);
  const left = (title) => el("th", { class: "text" }, title);
  const numbers = ["adds (points)", "95 % interval", "p", left("verdict"), "within (points)"];
  const heads = ["row", left("on top of"), ...numbers, left("also differs in")];
  const read = "All pairs of the board are tested together at 5 %, by their differences under the seeds that both rows have. Within: a larger change, up or down, is excluded.";
  return el(
    "section",
    {},
    el("h2", {}, "What a row adds"),
    el("p", { class: "quiet" }, read),
    table("what a row adds", heads, lines),
  );
}

function averages() {
  const { rows, tests } = DATA.averages;
  const names = rows.length ? Object.keys(rows[0].ranks) : [];
  if (names.length < 2) return null;
  const lines = rows.map(({ row, mean, ranks }) => [row, mean.toFixed(1), ...names.map((name) => interval(ranks[name]))]);
  const read = `The rows that these scenarios all rank, in order of the mean of their places by score; a rank counts these rows alone. ${tests}`;
  return el(
    "section",
    {},
    el("h2", {}, "Over scenarios"),
    el("p", { class: "quiet" }, read),
    table("over scenarios", ["row", "mean place", ...names], lines),
  );
}
