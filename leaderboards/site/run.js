"use strict";
// One run: its scores, settings and origin.

const OF_CLIENT = "accuracy of "; // begins the metric of one client

function runPage(scenario, row, seed) {
  const run = lookup(DATA.runs, `${scenario}/${row}/${seed}`);
  if (!run) return [el("h1", {}, "No such run"), el("p", {}, `The records hold no ${scenario}, ${row}, ${seed}.`)];
  const boardRow = lookup(DATA.scenarios, scenario).rows.find((candidate) => candidate.row === row);
  const seeds = boardRow.seeds.map((number) =>
    el(
      "a",
      {
        class: "seed",
        href: address("run", scenario, row, `seed${number}`),
        "aria-current": `seed${number}` === seed ? "page" : null,
      },
      `seed ${number}`,
    ),
  );
  const measured = Object.entries(run.scores)
    .sort()
    .flatMap(([protocol, metrics]) => Object.entries(metrics).map(([metric, value]) => [protocol, metric, value]));
  const scores = measured
    .filter(([, metric]) => !metric.startsWith(OF_CLIENT))
    .map(([protocol, metric, value]) => [protocol, longText(metric), String(value)]);
  const clients = measured
    .filter(([, metric]) => metric.startsWith(OF_CLIENT))
    .sort((one, other) => one[2] - other[2])
    .map(([protocol, metric, value]) => [metric.slice(OF_CLIENT.length), longText(protocol), formatNumber(value, 1)]);
  const settings = Object.entries(boardRow.settings).map(([key, value]) => [
    key,
    longText(typeof value === "string" ? value : JSON.stringify(value)),
  ]);
  return [
    el("p", {}, el("a", { href: address("board", scenario) }, `← ${scenario}`)),
    el("h1", {}, `${boardRow.shown}, ${seed}`),
    el("p", { class: "headline" }, headline(run, boardRow)),
    el("p", { class: "quiet" }, "Seeds: ", seeds),
    run.deviations.length
      ? el(
          "ul",
          {},
          run.deviations.map((line) => el("li", {}, line)),
        )
      : null,
    el(
      "dl",
      {},
      facts(run).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
    el("div", { class: "charts" }, pictures(row, run.curve)),
    el("h2", {}, "Scores"),
    run.encoders ? el("p", { class: "quiet" }, `An accuracy is the ${run.encoders}, and the same name with _worst that of the worst of them.`) : null,
    table("scores", ["protocol", el("th", { class: "text" }, "metric"), "value"], scores),
    el("p", { class: "quiet" }, measuredAt(run)),
    clients.length ? perClient(clients) : null,
    el("h2", {}, "Config"),
    table("config", ["key", el("th", { class: "text" }, "value")], settings),
  ];
}

// The first scores of the board that the run has, each with the mean of its row.
function headline(run, boardRow) {
  return DATA.columns
    .map(({ key, title, digits: places }) => {
      const [protocol, metric] = key.split(/ (.*)/);
      return [title, places, run.scores[protocol]?.[metric], boardRow.cells[key]];
    })
    .filter(([, , value]) => value !== undefined)
    .slice(0, FIRST)
    .map(([title, places, value, cell]) =>
      el(
        "span",
        {},
        `${title} `,
        el("strong", {}, formatNumber(value, places)),
        boardRow.seeds.length > 1 ? el("small", {}, "row ", ...withSpread(cell, places)) : null,
      ),
    );
}

// clients: [name, protocol, accuracy], the worst first
function perClient(clients) {
  const [[worst, , least], [best, , most]] = [clients[0], clients.at(-1)];
  const told = `Clients, worst first: ${clients.length} accuracies, from ${least} (${worst}) to ${most} (${best})`;
  return el(
    "details",
    {},
    el("summary", {}, told),
    table("clients", ["client", el("th", { class: "text" }, "protocol"), "accuracy (%)"], clients),
  );
}

function measuredAt(run) {
  const made = new Map(); // commit and day -> protocols
  for (const [protocol, origin] of Object.entries(run.evaluated)) {
    const key = `${(origin.git || "no commit").slice(0, 7)}${origin.dirty ? "*" : ""}, ${origin.date.slice(0, 10)}`;
    made.set(key, [...(made.get(key) || []), protocol]);
  }
  const [same] = made.keys();
  if (made.size < 2) return `Scores made at ${same || "the run's commit"}.`;
  return `Scores made at ${[...made].map(([key, names]) => `${key}: ${names.join(", ")}`).join("; ")}.`;
}

function facts(run) {
  const made = run.provenance;
  const sent = (entries) =>
    Object.entries(entries)
      .map(([name, count]) => `${name} ${bytes(count)}`)
      .join(", ") || "none";
  const ranks = `${run.world_size} rank${run.world_size > 1 ? "s" : ""}`;
  const single = run.federation.clients === 1 ? "none: one client holds all images and exchanges nothing" : null;
  const { wall, clients, evaluation } = run.seconds;
  return [
    ["rounds", `${run.rounds.done} of ${run.rounds.planned}${run.rounds.ended ? `: ${run.rounds.ended}` : ""}`],
    ["clients", `${run.federation.clients}, ${digits(run.federation.participation * 100)} % in a round`],
    ["images seen", run.images.toLocaleString("en")],
    ["best round", run.best && `${run.best.round} (${run.best.metric} ${digits(run.best.value)}), never the headline`],
    ["bytes up", single || sent(run.bytes.up)],
    ["bytes down", single || sent(run.bytes.down)],
    ["costs", run.costs ? counted(run.costs) : null],
    [
      "seconds",
      `${Math.round(wall)} of training, ${Math.round(clients)} of them at clients, ${Math.round(evaluation)} of evaluation; ${ranks}`,
    ],
    [
      "activity",
      Object.entries(run.activity || {})
        .map(([name, { mean, bound, measures }]) => `${name.replaceAll("_", " ")} ${digits(mean)} (${measures}; hardly acts below ${bound})`)
        .join("; ") || null,
    ],
    ["epsilon", run.epsilon === null ? null : String(run.epsilon)],
    ["commit", `${made.git || "none"}${made.dirty ? ", with changed files" : ""}`],
    ["date", made.date],
    ["hardware", made.hardware],
    [
      "Python",
      `${made.python}; ${Object.entries(made.libraries)
        .map((pair) => pair.join(" "))
        .join(", ")}`,
    ],
    [
      "hashes",
      `record ${run.record}; config ${made.config}; data ${made.dataset.slice(0, 16)}; partition ${made.partition.slice(0, 16)}`,
    ],
  ].filter(([, value]) => value !== null);
}

// What a client of the mean size pays.
function counted({ flops, flops_max, memory, kept, images }) {
  const most = flops_max > flops ? ` (at most ${digits(flops_max / 1e9)})` : "";
  const each = `a client of ${images.toLocaleString("en")} images`;
  return `${digits(flops / 1e9)} GFLOP a round${most}, ${bytes(memory)} of memory, keeps ${bytes(kept)}: ${each}`;
}

function pictures(row, curve) {
  const drawn = Object.entries({ loss: "mean local loss", ...METRICS }).map(([metric, name]) => {
    const points = curve
      .filter((point) => metric in point)
      .map((point) => ({ x: point.round, y: point[metric], label: `round ${point.round}` }));
    return points.length ? chart([{ name, row, points }], { title: name, x: "round" }) : null;
  });
  const path = curve
    .filter((point) => "uniformity" in point && "alignment" in point)
    .map((point) => ({ x: point.uniformity, y: point.alignment, label: `round ${point.round}` }));
  if (path.length)
    drawn.push(
      chart([{ name: "round after round", row, points: path }], {
        title: "Uniformity and alignment",
        x: "uniformity (nats)",
        y: "alignment",
      }),
    );
  return drawn;
}
