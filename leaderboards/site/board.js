"use strict";
// The board of a scenario: a table to sort and narrow down, and its ticked rows side by side.

const METRICS = {
  monitor: "kNN on held-out train (%)",
  effective_rank: "effective rank",
  alignment: "alignment",
  uniformity: "uniformity (nats)",
};
const AGAINST = { round: "rounds", bytes: "bytes up and down, all clients", seconds: "seconds of training" };
const FIRST = 4; // scores that are shown at once
const view = {
  sort: ["rank", 1],
  text: "",
  method: "",
  more: false,
  metric: "monitor",
  against: "round",
  ticked: new Map(),
};

function boardPage(scenario) {
  const names = Object.keys(DATA.scenarios);
  if (!names.length) return [el("h1", {}, "Board"), el("p", {}, "No run has been recorded yet.")];
  const size = (name) => DATA.scenarios[name].rows.length;
  const here = names.includes(scenario)
    ? scenario
    : names.reduce((best, name) => (size(name) > size(best) ? name : best));
  const { rows, missing } = DATA.scenarios[here];
  if (!rows.some((row) => row.method === view.method)) view.method = "";
  if (!view.ticked.has(here)) view.ticked.set(here, new Set(rows.slice(0, 5).map((row) => row.row)));
  const ticked = view.ticked.get(here);
  const charts = el("div", { class: "charts" });
  const drawCharts = () => charts.replaceChildren(...sideBySide(here, rows, ticked));
  const [controls, shown] = boardTable(here, rows, ticked, drawCharts);
  const scenarios = names.map((name) => [name, `${name} (${size(name)})`]);
  controls.prepend(
    choose("scenario", here, scenarios, (name) => {
      location.hash = address("board", name);
    }),
  );
  drawCharts();
  const over = el(
    "div",
    { class: "controls" },
    choose("curves of", view.metric, Object.entries(METRICS), (name) => {
      view.metric = name;
      drawCharts();
    }),
    choose("against", view.against, Object.entries(AGAINST), (name) => {
      view.against = name;
      drawCharts();
    }),
  );
  const read =
    "Mean ± spread over seeds after the last round. Rows that share a rank cannot be told apart by their " +
    "seeds; untrained is the floor. Bytes and client seconds are per client and round.";
  return [
    el("h1", {}, here),
    controls,
    shown,
    el("p", { class: "quiet" }, read),
    missing.length ? el("p", { class: "quiet" }, `Missing: ${missing.join("; ")}.`) : null,
    el("h2", {}, "Side by side"),
    el("p", { class: "quiet" }, "The rows that are ticked above."),
    over,
    charts,
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
  const scores = DATA.columns.map(({ key, title, digits: places }, place) =>
    column(
      key,
      title,
      (row) => (row.cells[key] ? row.cells[key][0] : null),
      (_, row) => withSpread(row.cells[key], places),
      { more: place >= FIRST },
    ),
  );
  const up = { up: true };
  const found = [
    column(
      "rank",
      "rank",
      (row) => row.rank,
      (rank, row) => (rank === null ? NONE : `${rank}${row.tied ? "=" : ""}`),
      up,
    ),
    ...scores,
    column("bytes_up", "bytes up", (row) => row.bytes_up, bytes, up),
    column("bytes_down", "bytes down", (row) => row.bytes_down, bytes, up),
    column("client_seconds", "client seconds", (row) => row.client_seconds, digits, up),
    column(
      "epsilon",
      "epsilon",
      (row) => row.epsilon,
      (spent, row) => (spent === null ? NONE : `${digits(spent)} (${row.covers.join(", ")})`),
      up,
    ),
    column(
      "made",
      "made at",
      (row) => row.dates[1],
      (_, row) => [row.commits.join(", "), el("small", {}, `${row.dates[1].slice(0, 10)}, ${row.hardware.join("; ")}`)],
      { more: true },
    ),
  ];
  return found.filter((one) => (view.more || !one.more) && rows.some((row) => one.value(row) !== null));
}

function sorted(rows, shown) {
  const [key, sign] = view.sort;
  const value = key === "row" ? (row) => row.row : (shown.find((one) => one.key === key) || shown[0]).value;
  return [...rows].sort((a, b) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || other === null) return (one === null) - (other === null); // what is missing stays below
    return sign * (typeof one === "string" ? one.localeCompare(other) : one - other);
  });
}

// The controls over the table, and the table; only the table is drawn anew, so that the keyboard stays where it is.
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
    const name = [el("a", { href: run(row.seeds[0]) }, row.row), el("small", {}, row.objective)];
    return [
      el("td", {}, box, el("span", {}, name)),
      ...shown.map((one) => el("td", {}, one.show(row))),
      el("td", {}, seeds),
    ];
  };
  const draw = () => {
    const shown = columns(rows);
    const wanted = (row) =>
      (!view.method || row.method === view.method) &&
      `${row.row} ${row.objective}`.toLowerCase().includes(view.text.toLowerCase());
    const kept = rows.filter(wanted);
    const heads = [heading("row", "row", true), ...shown.map((one) => heading(one.key, one.title, one.up)), "seeds"];
    const across = holder.firstChild ? holder.firstChild.scrollLeft : 0;
    holder.replaceChildren(
      table(
        heads,
        sorted(kept, shown).map((row) => line(row, shown)),
      ),
    );
    holder.firstChild.scrollLeft = across;
    count.textContent = kept.length === rows.length ? `${rows.length} rows` : `${kept.length} of ${rows.length} rows`;
  };
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
      tick("all scores", view.more, (checked) => {
        view.more = checked;
        draw();
      }),
      count,
    ),
    holder,
  ];
}

function sideBySide(scenario, rows, ticked) {
  const some = rows.filter((row) => ticked.has(row.row));
  return [curves(scenario, some), plane(rows, some), paired(some)];
}

function curves(scenario, rows) {
  const series = rows.map((row) => {
    const runs = row.seeds.map((seed) => own(DATA.runs, `${scenario}/${row.row}/seed${seed}`)?.curve || []);
    const seen = runs
      .filter((curve) => curve.length)
      .map((curve) => new Map(curve.filter((point) => view.metric in point).map((point) => [point.round, point])));
    const rounds = seen.length ? [...seen[0].keys()].filter((round) => seen.every((one) => one.has(round))) : [];
    const points = rounds.map((round) => {
      const at = seen.map((one) => one.get(round));
      const values = at.map((point) => point[view.metric]);
      return {
        x: mean(at.map((point) => point[view.against])),
        y: mean(values),
        spread: spread(values),
        label: `${row.row}, round ${round}`,
      };
    });
    return { name: row.row, points: points.filter((point) => view.against !== "bytes" || point.x > 0) };
  });
  const none = "None of the ticked rows was watched over its rounds.";
  return chart(series, {
    title: "Over training",
    x: AGAINST[view.against],
    y: METRICS[view.metric],
    log: view.against === "bytes",
    none,
  });
}

function plane(rows, some) {
  const [across, upward] = ["geometry/v1 uniformity", "geometry/v1 alignment"];
  const points = (row) =>
    row.cells[across] && row.cells[upward]
      ? [{ x: row.cells[across][0], y: row.cells[upward][0], label: row.row }]
      : [];
  const others = rows.filter((row) => !some.includes(row)).flatMap(points);
  const series = some.map((row, place) => ({ name: row.row, dots: true, colour: colour(place), points: points(row) }));
  const title = "Uniformity and alignment of features (lower is better, both)";
  return chart([{ name: "other rows", dots: true, colour: "var(--line)", points: others }, ...series], {
    title,
    x: "uniformity (nats)",
    y: "alignment",
  });
}

function paired([base, ...others]) {
  const figure = el("figure", {}, el("figcaption", {}, "Linear probe, seed by seed"));
  if (!others.length) {
    figure.append(el("p", { class: "quiet" }, "Tick two rows to hold one against the other."));
    return figure;
  }
  const lines = others.map((row) => {
    const seeds = row.seeds.filter((seed) => seed in row.headline && seed in base.headline);
    const points = seeds.map((seed) => row.headline[seed] - base.headline[seed]);
    if (!points.length) return [row.row, el("td", { colspan: 3 }, "no seed in common")];
    const ahead = `${points.filter((one) => one > 0).length} of ${points.length}`;
    return [
      row.row,
      el("td", {}, withSpread([mean(points), spread(points)], 2)),
      ahead,
      points.map((one) => number(one, 1)).join(", "),
    ];
  });
  figure.append(table([`less ${base.row}`, "points", "ahead in", "by seed"], lines, "wide low"));
  return figure;
}

function averages() {
  const names = DATA.averages.length ? Object.keys(DATA.averages[0].ranks) : [];
  if (names.length < 2) return null;
  const lines = DATA.averages.map((one) => [
    one.row,
    number(one.mean, 2),
    ...names.map((name) => String(one.ranks[name])),
  ]);
  const read =
    "Mean ranks of the rows that these scenarios all rank; rows that share a rank take the mean of its places.";
  return el(
    "section",
    {},
    el("h2", {}, "Over scenarios"),
    el("p", { class: "quiet" }, read),
    table(["row", "mean rank", ...names], lines),
  );
}
