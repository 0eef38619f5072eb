/* Performance when heads are silenced, and D, at the stored fraction nearest to the slider. */
function nearestFraction(fractions, alpha) {
  return fractions.reduce((best, fraction, i) => (Math.abs(fraction - alpha) < Math.abs(fractions[best] - alpha) - 1e-9 ? i : best), 0);
}

function drawMeasured(view) {
  const data = view.study.dissociation;
  if (!data) return;
  const at = nearestFraction(data.fractions, view.state.alpha);
  show(view, "fraction-note", `Measured at α = ${percent(data.fractions[at])}${data.fractions.length > 1 ? `, the nearest of ${data.fractions.length} measured` : ""}.`);
  drawMatrix(view, data, at);
}

function drawDissociation(view) {
  const data = view.study.dissociation;
  if (data && data.D) { drawScores(view, data); drawCurve(view, data); }
}

function drawMatrix(view, data, at) {
  const random = randomLesions(data), columns = [...data.lesions.keys()].filter((j) => !random.includes(j));
  const dense = columns.length + (random.length ? 1 : 0) > 11;
  const head = el("tr", {}, el("td", {}), columns.map((j) => lesionHead(view, data.lesions[j], dense)),
    random.length ? lesionHead(view, random.length > 1 ? `${random.length} random` : "random", dense) : null);
  const rows = data.tasks.map((name, i) => el("tr", {}, el("th", { scope: "row", title: name }, taskBadge(view, name), shortName(view, name)),
    columns.map((j) => lesionCell(view, data, at, i, j, dense)), random.length ? randomCell(data, at, i, random, dense) : null));
  show(view, "matrix", el("table", { class: dense ? "heat dense" : "heat" }, el("thead", {}, head), el("tbody", {}, rows)));
}

/* Random head sets are one column: their mean and range. */
const randomLesions = (data) => [...data.lesions.keys()].filter((j) => /^random \d+$/.test(data.lesions[j]) && !data.tasks.includes(data.lesions[j]));

function randomCell(data, at, i, random, dense) {
  const row = data.performance[at][i], base = row[data.lesions.indexOf("none")];
  const left = random.map((j) => remaining(row[j], base)).filter(known);
  const [low, high] = [Math.min(...left), Math.max(...left)];
  const describe = () => [el("b", {}, `${data.tasks[i]} without random heads`), el("p", {}, `Mean of ${random.length} sets: ${percent(sum(left) / left.length, 1)} of ${number(base, 4)}`),
    el("p", {}, `${percent(low, 1)} to ${percent(high, 1)}`)];
  const on = left.length ? described(describe) : {};
  const collapsed = data.collapsed && random.some((j) => data.collapsed[at][i][j]);
  return el("td", { class: collapsed ? "base collapsed" : "base", on }, el("b", {}, left.length ? `${Math.round((100 * sum(left)) / left.length)}` : "–"),
    el("small", {}, left.length > 1 && !dense ? `${Math.round(100 * low)}–${Math.round(100 * high)}` : ""));
}

const described = (describe) => ({ mouseenter: (event) => showTip(describe(), event.target), mouseleave: hideTip, click: (event) => showTip(describe(), event.currentTarget) });

/* The test of one cell against the intact model, on the same rows. */
const cellTest = (data, at, i, j) => ((data.cells || [])[at] || {})[data.tasks[i]]?.[data.lesions[j]];
const LEVEL = 0.05;
const significant = (p) => known(p) && p < LEVEL;

const taskDot = (view, name) => (view.byName[name] ? dot(view.byName[name].position) : null);
const taskBadge = (view, name) => (view.byName[name] ? badge(view.byName[name].position, view.byName[name].letter) : null);
const shortName = (view, name) => view.byName[name]?.short ?? name;
/* Losses are grey: colours mean tasks. */
const loss = (t) => `color-mix(in srgb, var(--ink) ${Math.round(8 + 88 * t)}%, var(--paper))`;
const inkOnLoss = (t) => `light-dark(${t > 0.6 ? "#fff" : "#000"}, ${t > 0.42 ? "#000" : "#fff"})`;
const lossBar = () => `linear-gradient(to right, ${[0, 0.5, 1].map(loss).join(", ")})`;

function lesionHead(view, lesion, upright) {
  const text = lesion === "none" ? "intact" : lesion;
  return el("th", { scope: "col", class: upright ? "upright" : "", title: text }, el("span", {}, taskBadge(view, lesion), el("span", { class: view.byName[lesion] ? "name" : "" }, breakable(shortName(view, text)))));
}

/* A long name of a task breaks where its parts meet: sst2 @prompt, blimp. subject_ verb_ agreement. */
const breakable = (name) => name.split(/(?=@)|(?<=[._])/).flatMap((part, i) => (i ? [el("wbr", {}), part] : [part]));

function lesionCell(view, data, at, i, j, dense) {
  const base = data.performance[at][i][data.lesions.indexOf("none")], value = data.performance[at][i][j];
  const bounds = data.low && data.high ? [data.low[at][i][j], data.high[at][i][j]] : [null, null];
  const test = cellTest(data, at, i, j);
  const describe = () => lesionTip(data, at, i, j, base, value, bounds, test);
  const on = described(describe);
  if (data.lesions[j] === "none") return el("td", { class: "base", on }, el("b", {}, fixed(value)), el("small", {}, known(bounds[0]) && !dense ? `${fixed(bounds[0])}–${fixed(bounds[1])}` : ""));
  const left = remaining(value, base);
  const t = clamp((1 - left) / (1 - worst(data))) * 0.92;
  const coloured = known(left) && test && significant(test.p_holm) && !view.study.withheld[data.tasks[i]];
  const classes = [coloured ? "" : "base", data.tasks[i] === data.lesions[j] ? `own ${view.byName[data.tasks[i]] ? taskClass(view.byName[data.tasks[i]].position) : ""}` : "", data.collapsed && data.collapsed[at][i][j] ? "collapsed" : ""];
  return el("td", { class: classes.join(" ").trim(), on, style: coloured ? { background: loss(t), color: inkOnLoss(t) } : {} },
    el("b", {}, known(left) ? `${Math.round(100 * left)}` : "–"),
    el("small", {}, known(left) && known(bounds[0]) && !dense ? `${Math.round((100 * bounds[0]) / base)}–${Math.round((100 * bounds[1]) / base)}` : ""));
}

/* What is left of an intact score; of one that is not above 0 there is no share. */
const remaining = (value, base) => (known(value) && base > 0 ? value / base : NaN);

/* One scale for all fractions, so that colours keep their meaning while the slider moves. */
function worst(data) {
  if (data.worst === undefined) {
    const none = data.lesions.indexOf("none");
    const all = data.performance.flatMap((rows) => rows.flatMap((row) => row.map((value) => remaining(value, row[none])))).filter(known);
    data.worst = Math.min(0.9, ...all);
  }
  return data.worst;
}

function lesionTip(data, at, i, j, base, value, [low, high], test) {
  const lesion = data.lesions[j];
  const title = lesion === "none" ? `${data.tasks[i]}, intact` : `${data.tasks[i]} without the heads of ${lesion}`;
  const interval = known(low) ? ` (95 % CI ${number(low)} to ${number(high)})` : "";
  const rows = data.n && data.n[data.tasks[i]];
  return [el("b", {}, title), el("p", {}, `${number(value, 4)}${interval}${rows ? `, n = ${rows}` : ""}`),
    lesion === "none" || !(base > 0) ? null : el("p", {}, `${percent(remaining(value, base), 1)} of ${number(base, 4)}`),
    test ? el("p", {}, `Change ${points(test.change)} points (95 % CI ${points(test.low)} to ${points(test.high)}); ${known(test.p_holm) ? `${chance(test.p_holm)} over rows, Holm-corrected` : "no p from so few rows"}.`) : null,
    data.collapsed && data.collapsed[at][i][j] ? el("p", {}, "All predictions fall into one class.") : null].filter(Boolean);
}

function drawMatrixLegend(view) {
  const data = view.study.dissociation;
  if (!data) return;
  const any = data.collapsed && data.collapsed.flat(2).some(Boolean);
  show(view, "matrix-legend", data.cells ? [el("span", {}, "100 %"), el("i", { class: "rampbar", style: { background: lossBar() } }), el("span", {}, percent(worst(data)))] : null,
    data.cells ? el("span", { class: "about" }, el("i", { class: "swatch filled" }), "p < 0.05 over rows, Holm-corrected") : null,
    el("span", { class: "about" }, el("i", { class: "swatch untold" }), data.cells ? "not significant" : "no tests in this study"),
    el("span", { class: "about" }, el("i", { class: "swatch own" }), "own heads ablated"),
    any ? el("span", { class: "about" }, el("i", { class: "swatch collapsed" }), "all predictions in one class") : null);
}

/* D on the task's own metric, or on another score the study also holds. */
function scoreLists(data) {
  return { "own metric": data.D, ...Object.fromEntries(Object.entries(data.on || {}).map(([name, list]) => [name.replaceAll("_", " "), list])) };
}

function drawScores(view, data) {
  const lists = scoreLists(data), names = Object.keys(lists);
  if (names.length > 1) show(view, "on", segments(names.map((key) => ({ key, label: key })), view.state.on, (key) => { view.state.on = key; drawScores(view, data); drawCurve(view, data); }));
  const list = lists[view.state.on];
  const entry = list[nearestFraction(list.map((e) => e.fraction), view.state.alpha)];
  const domain = scoreDomain(list);
  const held = view.study.withheld;
  const rows = Object.entries(entry.tasks).map(([name, score]) => scoreRow(el("span", { class: "name" }, taskDot(view, name), name), score, domain, view.byName[name],
    Boolean(data.null) && !held[name] && significant(score.p_holm ?? score.p), held[name] || tests(data, score)));
  const mean = entry.mean ? scoreRow(el("span", { class: "name" }, "Mean D"), entry.mean, domain, null,
    Boolean(data.null) && !Object.keys(held).length && significant(entry.mean.p), tests(data, entry.mean)) : null;
  show(view, "scores", el("div", { class: "score-rows" }, rows, mean),
    el("p", { class: "hint" }, entry.mean && known(entry.mean.p) && !Object.keys(held).length ? `Mean D, one-sided: ${tests(data, entry.mean)}. ` : "",
      data.null ? "Pale: not significant after Holm correction. " : "Pale: not tested against random head sets. ", "Lines at 0 and 10 points."));
  drawPairs(view, data, entry.pairs || []);
}

/* Every p with the null it is over. */
function tests(data, score) {
  const values = data.null
    ? [[score.p_holm ?? score.p, `against ${data.random || ""} random head sets of the same size${known(score.p_holm) ? ", Holm-corrected" : ""}`], [score.p_layers, "against sets matched by layer"], [score.p_rows, "over rows"]]
    : [[score.p, "over rows"]];
  return values.filter(([p]) => known(p)).map(([p, over]) => `${chance(p)} ${over}`).join("; ") || "not tested";
}

function scoreDomain(entries) {
  const scores = entries.flatMap((entry) => [...Object.values(entry.tasks), entry.mean || {}]);
  const values = scores.flatMap((s) => [s.value, s.low, s.high]).filter(known);
  return padded(Math.min(0, ...values), Math.max(0.1, ...values));
}

const padded = (low, high) => [low - 0.04 * (high - low), high + 0.04 * (high - low)];

function scoreRow(label, score, domain, task, marked, title) {
  return el("div", { class: `score-row${task ? "" : " mean"}${marked ? "" : " pale"}`, title }, label, track(score, domain, [0, 0.1], task ? taskClass(task.position) : ""),
    el("span", { class: "value" }, el("b", {}, points(score.value)), el("small", {}, known(score.low) ? ` ${points(score.low)} to ${points(score.high)}` : "")));
}

/* A point with its interval on a common scale. */
function track(score, domain, marks, colour) {
  const at = (value) => `${(100 * (value - domain[0])) / (domain[1] - domain[0])}%`;
  const width = (low, high) => `${(100 * (high - low)) / (domain[1] - domain[0])}%`;
  return el("span", { class: `whisker ${colour}` }, marks.map((mark) => el("s", { class: mark ? "dashed" : "", style: { left: at(mark) } })),
    known(score.low) && known(score.high) ? el("u", { style: { left: at(score.low), width: width(score.low, score.high) } }) : null,
    known(score.value) ? el("i", { style: { left: at(score.value) } }) : null);
}

/* What a pair is called, as in the verdict; only what is significant has a colour. */
const PILLS = { significant: "good", "not significant": "", "not tested": "", single: "", none: "", "both negative": "", undefined: "", withheld: "" };
const PAIR_NAMES = { single: "one-sided", "both negative": "none" };
const pairName = (pair) => (pair.kind === "significant" ? pair.verdict : PAIR_NAMES[pair.kind] || pair.kind);

const PAIRS = 300; /* in the table at first */

function drawPairs(view, data, pairs) {
  const sorted = [...pairs].sort((a, b) => (b.d ?? -9) - (a.d ?? -9)), held = view.study.withheld;
  const every = data.null ? [["p", "p, random sets", "one-sided, against random head sets of the same size, Holm-corrected"],
    ["p_layers", "p, layers matched", "one-sided, against sets with as many heads in every layer, Holm-corrected"], ["p_rows", "p, rows", "one-sided, over development rows, Holm-corrected"]]
    : [["p", "p, rows", "one-sided, over development rows, Holm-corrected"]];
  const columns = every.filter(([key]) => pairs.some((pair) => known(pair[key])));
  const head = el("tr", {}, el("th", {}, "Tasks"), ["D first", "D second", "D"].map((t) => el("th", { class: "r" }, t)), el("th", {}, "Double dissociation"),
    columns.map(([, name, title]) => el("th", { class: "r", title }, name)));
  const listed = view.state.allPairs ? sorted : sorted.slice(0, PAIRS);
  const rows = listed.map((pair) => el("tr", {}, el("th", { scope: "row" }, taskDot(view, pair.a), pair.a, el("span", { class: "and" }, " · "), taskDot(view, pair.b), pair.b),
    [pair.d_a, pair.d_b, pair.d].map((value) => el("td", { class: "r" }, points(value))),
    el("td", {}, el("span", { class: `tag ${PILLS[pair.kind] || ""}`.trim(), title: held[pair.a] || held[pair.b] }, pairName(pair))),
    columns.map(([key]) => el("td", { class: "r" }, known(pair[key]) && pair.kind !== "withheld" ? (pair[key] < 0.001 ? "< 0.001" : number(pair[key], 2)) : "–"))));
  const all = listed.length < sorted.length ? el("button", { type: "button", class: "quiet", on: { click: () => { view.state.allPairs = true; drawPairs(view, data, pairs); } } }, `All ${sorted.length} pairs`) : null;
  show(view, "pairs", el("table", { class: "plain" }, el("thead", {}, head), el("tbody", {}, rows)), all);
}

function drawCurve(view, data) {
  const place = part(view, "d-curve");
  if (!place) return;
  const list = scoreLists(data)[view.state.on], x = list.map((entry) => entry.fraction);
  const series = Object.keys(list[0].tasks).map((name) => ({ name, colour: view.byName[name] ? taskClass(view.byName[name].position) : "", x, y: list.map((entry) => (entry.tasks[name] || {}).value) }));
  if (list[0].mean) series.push({ name: "mean", strong: true, x, y: list.map((e) => e.mean.value), low: list.map((e) => e.mean.low), high: list.map((e) => e.mean.high) });
  lineChart(place, { series, xName: "fraction of heads ablated, α", yName: "D", xText: (v) => percent(v), yText: (v) => points(v, 0), zero: true,
    marker: x[nearestFraction(x, view.state.alpha)], legend: false });
}
