/* Lines and points, drawn at the width there is. */
function ticks(low, high, count = 4) {
  const raw = (high - low) / count || 1, size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  return [...Array(Math.floor(high / step + 1e-9) - first + 1).keys()].map((i) => (first + i) * step);
}

function frame(place, xs, ys, spec) {
  const width = Math.max(260, place.clientWidth || 520), height = spec.height || 240;
  const box = { left: 46, right: width - 20, top: 12, bottom: height - 36 };
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = padded(Math.min(...ys), Math.max(...ys));
  const x = (v) => box.left + ((v - x0) / (x1 - x0 || 1)) * (box.right - box.left);
  const y = (v) => box.bottom - ((v - y0) / (y1 - y0 || 1)) * (box.bottom - box.top);
  const grid = ticks(y0, y1).map((v) => [svg("line", { class: Math.abs(v) < 1e-12 && spec.zero ? "axis" : "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }),
    svg("text", { x: box.left - 6, y: y(v), "text-anchor": "end" }, spec.yText(v))]);
  const feet = ticks(x0, x1, width < 400 ? 3 : 5).map((v) => svg("text", { x: x(v), y: box.bottom + 14, "text-anchor": "middle" }, spec.xText(v)));
  const names = [svg("text", { class: "axis-name", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, spec.xName)];
  return { root: svg("svg", { viewBox: `0 0 ${width} ${height}`, role: spec.points ? "group" : "img", "aria-label": `${spec.yName} against ${spec.xName}` }, grid, feet, names), x, y, box };
}

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function lineChart(place, spec) {
  const xs = spec.series.flatMap((s) => s.x).filter(known);
  const ys = spec.series.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]).filter(known);
  if (!xs.length || !ys.length) return;
  const { root, x, y, box } = frame(place, xs, spec.zero ? [0, ...ys] : ys, spec);
  if (known(spec.marker)) root.append(svg("line", { class: "marker", x1: x(spec.marker), x2: x(spec.marker), y1: box.top, y2: box.bottom }));
  for (const line of spec.series) root.append(...linePaths(line, x, y));
  place.replaceChildren(root, ...(spec.legend === false ? [] : [chartLegend(spec.series)]));
}

function linePaths(line, x, y) {
  const pairs = (values) => line.x.map((v, i) => [v, values[i]]).filter(([, v]) => known(v)).map(([a, b]) => [x(a), y(b)]);
  const points = pairs(line.y);
  const middle = points.length === 1 /* no line goes through a single point */
    ? svg("circle", { class: `spot ${line.colour || ""}`, cx: points[0][0], cy: points[0][1], r: line.strong ? 4.5 : 3.5 }, svg("title", {}, line.name))
    : svg("path", { class: `line ${line.colour || ""}${line.strong ? " strong" : ""}`, d: path(points) }, svg("title", {}, line.name));
  if (!line.low || !line.low.some(known)) return [middle];
  return [svg("path", { class: "band", d: `${path([...pairs(line.low), ...pairs(line.high).reverse()])}Z` }), middle];
}

const chartLegend = (series) => el("p", { class: "chart-legend" }, series.map((line) => el("span", {}, el("i", { class: `dot ${line.colour}` }), line.name)));

function drawTraining(view) {
  const runs = Object.entries((view.study.training || {}).tasks || {});
  const lines = (x, y) => runs.filter(([, run]) => run[y]).map(([name, run]) => ({ name, colour: view.byName[name] ? taskClass(view.byName[name].position) : "", x: run[x] || run[y].map((_, i) => i), y: run[y] }));
  for (const [name, x, y] of [["loss", "step", "loss"], ["metric", "metric_step", "metric"]]) {
    if (part(view, name)) lineChart(part(view, name), { series: lines(x, y), xName: "step", yName: name, xText: (v) => number(v), yText: (v) => number(v, 2) });
  }
}

function drawSimilarity(view) {
  const data = view.study.similarity;
  if (!data || !part(view, "similarity")) return;
  const measures = [...new Set(data.points.map((point) => point.measure))];
  const figures = measures.map((measure) => {
    const fit = (data.fits || {})[measure];
    const sure = fit && known(fit.p_mantel) ? `, ${chance(fit.p_mantel)} by permuted tasks` : ""; /* fit.p takes pairs that share a task for independent */
    const note = fit ? `r = ${number(fit.r, 2)}${known(fit.low) ? ` (${number(fit.low, 2)} to ${number(fit.high, 2)})` : ""}${sure}` : "";
    return el("figure", {}, el("figcaption", {}, el("h3", {}, measure), el("p", {}, note)), el("div", { class: "chart" }));
  });
  show(view, "similarity", figures);
  measures.forEach((measure, i) => scatter(figures[i].querySelector(".chart"), data.points.filter((p) => p.measure === measure), (data.fits || {})[measure]));
}

function scatter(place, dots, fit) {
  const usable = dots.filter((p) => known(p.similarity) && known(p.d));
  if (!usable.length) return;
  const xs = usable.map((p) => p.similarity), [x0, x1] = padded(Math.min(...xs), Math.max(...xs));
  const spec = { xName: "similarity", yName: "D", xText: (v) => number(v, 2), yText: (v) => points(v, 0), zero: true, points: true };
  const { root, x, y } = frame(place, [x0, x1], usable.map((p) => p.d), spec);
  if (fit && known(fit.slope)) root.append(svg("line", { class: "fit", x1: x(x0), x2: x(x1), y1: y(fit.intercept + fit.slope * x0), y2: y(fit.intercept + fit.slope * x1) }));
  root.append(...usable.map((p) => svg("circle", { class: "point", cx: x(p.similarity), cy: y(p.d), r: 5, tabindex: 0, role: "img",
    "aria-label": `${p.a} and ${p.b}`, on: { mouseenter: (event) => showTip(pointTip(p), event.target), focus: (event) => showTip(pointTip(p), event.target), mouseleave: hideTip, blur: hideTip } })));
  place.replaceChildren(root);
}

const pointTip = (p) => [el("b", {}, `${p.a} · ${p.b}`), el("p", {}, `similarity ${number(p.similarity)}, D ${points(p.d)}`)];
