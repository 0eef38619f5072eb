/* Performance when heads are silenced, and D, at the stored fraction nearest to the slider. */
function nearestFraction(fractions, alpha) {
  return fractions.reduce((best, fraction, i) => (Math.abs(fraction - alpha) < Math.abs(fractions[best] - alpha) - 1e-9 ? i : best), 0);
}

function drawLesions(view) {
  const data = view.study.dissociation;
  if (!data) return;
  const at = nearestFraction(data.fractions, view.state.alpha);
  show(view, "fraction-note", `Measured at α = ${percent(data.fractions[at])}, the nearest of ${data.fractions.length} measured.`);
  drawMatrix(view, data, at);
  if (data.D) { drawScores(view, data); drawCurve(view, data); }
}

function drawMatrix(view, data, at) {
  const dense = data.lesions.length > 11;
  const head = el("tr", {}, el("td", {}), data.lesions.map((lesion) => lesionHead(view, lesion, dense)));
  const rows = data.tasks.map((name, i) => el("tr", {}, el("th", { scope: "row", title: name }, taskDot(view, name), name),
    data.lesions.map((lesion, j) => lesionCell(data, at, i, j, dense))));
  show(view, "matrix", el("table", { class: dense ? "heat dense" : "heat" }, el("thead", {}, head), el("tbody", {}, rows)));
}

const taskDot = (view, name) => (view.byName[name] ? dot(view.byName[name].position) : null);

function lesionHead(view, lesion, upright) {
  const text = lesion === "none" ? "intact" : lesion;
  return el("th", { scope: "col", class: upright ? "upright" : "", title: text }, el("span", {}, taskDot(view, lesion), text));
}

function lesionCell(data, at, i, j, dense) {
  const base = data.performance[at][i][data.lesions.indexOf("none")], value = data.performance[at][i][j];
  const bounds = data.low && data.high ? [data.low[at][i][j], data.high[at][i][j]] : [null, null];
  const describe = () => lesionTip(data, at, i, j, base, value, bounds);
  const on = { mouseenter: (event) => showTip(describe(), event.target), mouseleave: hideTip, click: (event) => showTip(describe(), event.currentTarget) };
  if (data.lesions[j] === "none") return el("td", { class: "base", on }, el("b", {}, fixed(value)), el("small", {}, known(bounds[0]) && !dense ? `${fixed(bounds[0])}–${fixed(bounds[1])}` : ""));
  const left = remaining(value, base);
  const t = clamp((1 - left) / (1 - worst(data))) * 0.92;
  const classes = [data.tasks[i] === data.lesions[j] ? "own" : "", data.collapsed && data.collapsed[at][i][j] ? "collapsed" : ""];
  return el("td", { class: classes.join(" ").trim(), on, style: known(left) ? { background: shade(t), color: inkOn(t) } : {} },
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

function lesionTip(data, at, i, j, base, value, [low, high]) {
  const lesion = data.lesions[j];
  const title = lesion === "none" ? `${data.tasks[i]}, intact` : `${data.tasks[i]} without the heads of ${lesion}`;
  const interval = known(low) ? ` (${number(low)} to ${number(high)})` : "";
  return [el("b", {}, title), el("p", {}, `${number(value, 4)}${interval}`),
    lesion === "none" || !(base > 0) ? null : el("p", {}, `${percent(remaining(value, base), 1)} of ${number(base, 4)}`),
    data.collapsed && data.collapsed[at][i][j] ? el("p", {}, "Nearly all predictions fell into one class: read this cell with care.") : null].filter(Boolean);
}

function drawMatrixLegend(view) {
  const data = view.study.dissociation;
  if (!data) return;
  const any = data.collapsed && data.collapsed.flat(2).some(Boolean);
  show(view, "matrix-legend", el("span", {}, "100 %"), el("i", { class: "rampbar", style: { background: rampBar() } }), el("span", {}, percent(worst(data))),
    el("span", { class: "about" }, el("i", { class: "swatch own" }), "own heads silenced"),
    any ? el("span", { class: "about" }, el("i", { class: "swatch collapsed" }), "predictions fell into one class") : null);
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
  const rows = Object.entries(entry.tasks).map(([name, score]) => scoreRow(el("span", { class: "name" }, taskDot(view, name), name), score, domain, view.byName[name]));
  const mean = entry.mean ? scoreRow(el("span", { class: "name" }, "Mean D"), entry.mean, domain, null) : null;
  show(view, "scores", el("div", { class: "score-rows" }, rows, mean),
    entry.mean && known(entry.mean.p) ? el("p", { class: "hint" }, `Bootstrap test of the mean, one-sided: ${chance(entry.mean.p)}. Lines at 0 and at 10 points.`) : el("p", { class: "hint" }, "Lines at 0 and at 10 points."));
  drawPairs(view, entry.pairs || []);
}

function scoreDomain(entries) {
  const scores = entries.flatMap((entry) => [...Object.values(entry.tasks), entry.mean || {}]);
  const values = scores.flatMap((s) => [s.value, s.low, s.high]).filter(known);
  return padded(Math.min(0, ...values), Math.max(0.1, ...values));
}

const padded = (low, high) => [low - 0.04 * (high - low), high + 0.04 * (high - low)];

function scoreRow(label, score, domain, task) {
  return el("div", { class: task ? "score-row" : "score-row mean" }, label, track(score, domain, [0, 0.1], task ? taskClass(task.position) : ""),
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

const VERDICTS = { double: "good", distinct: "good", single: "mixed", none: "weak", "both negative": "weak" };

function drawPairs(view, pairs) {
  const sorted = [...pairs].sort((a, b) => (b.d ?? -9) - (a.d ?? -9));
  const head = el("tr", {}, el("th", {}, "Tasks"), ["D first", "D second", "D"].map((t) => el("th", { class: "r" }, t)), el("th", {}, "Dissociation"), el("th", { class: "r" }, "p, one-sided"));
  const rows = sorted.map((pair) => el("tr", {}, el("th", { scope: "row" }, taskDot(view, pair.a), pair.a, el("span", { class: "and" }, " · "), taskDot(view, pair.b), pair.b),
    [pair.d_a, pair.d_b, pair.d].map((value) => el("td", { class: "r" }, points(value))),
    el("td", {}, el("span", { class: `tag ${VERDICTS[pair.verdict] || "mixed"}` }, pair.verdict || "–")),
    el("td", { class: "r" }, known(pair.p) ? (pair.p < 0.001 ? "< 0.001" : number(pair.p, 2)) : "–")));
  show(view, "pairs", el("table", { class: "plain" }, el("thead", {}, head), el("tbody", {}, rows)));
}

function drawCurve(view, data) {
  const place = part(view, "d-curve");
  if (!place) return;
  const list = scoreLists(data)[view.state.on], x = list.map((entry) => entry.fraction);
  const series = Object.keys(list[0].tasks).map((name) => ({ name, colour: view.byName[name] ? taskClass(view.byName[name].position) : "", x, y: list.map((entry) => (entry.tasks[name] || {}).value) }));
  if (list[0].mean) series.push({ name: "mean", strong: true, x, y: list.map((e) => e.mean.value), low: list.map((e) => e.mean.low), high: list.map((e) => e.mean.high) });
  lineChart(place, { series, xName: "share of heads taken, α", yName: "D", xText: (v) => percent(v), yText: (v) => points(v, 0), zero: true,
    marker: x[nearestFraction(x, view.state.alpha)], legend: false });
}
