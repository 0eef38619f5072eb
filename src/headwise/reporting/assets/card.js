/* The card beside the map: a pinned head in full, or how the heads divide when none is pinned. */
function pin(view, head) {
  view.state.pinned = head;
  view.cells.forEach((cell, i) => {
    cell.classList.toggle("pinned", i === head);
    cell.setAttribute("aria-selected", i === head);
  });
  drawCard(view);
  if (view.ready) toAddress(view);
}

function drawCard(view) {
  const { pinned } = view.state;
  show(view, "card", pinned === null ? summaryCard(view) : headCard(view, pinned));
  show(view, "detail", pinned === null ? [] : headDetail(view, pinned));
  part(view, "card").classList.toggle("open", pinned !== null);
}

function summaryCard(view) {
  const counts = view.members.map((members) => members.length);
  const many = (test) => counts.filter(test).length;
  const n = view.tasks.length;
  const facts = [
    [taken(view), n > 1 ? "top heads per task" : "top heads"],
    ...(n > 1 ? [[many((c) => c === 1), "are top heads of one task only"]] : []),
    ...(n > 2 ? [[many((c) => c > 1 && c < n), "of several tasks"]] : []),
    ...(n > 1 ? [[many((c) => c === n), "of all tasks"]] : []),
    [many((c) => c === 0), "of no task at this α"],
  ];
  return [
    el("h3", {}, `${view.L * view.H} heads`),
    n === 0 ? null : el("dl", { class: "counts" }, facts.map(([count, text]) => [el("dt", {}, `${count}`), el("dd", {}, text)])),
    el("p", { class: "hint" }, "Arrow keys move over the map, Enter pins a head here, Escape unpins it."),
  ];
}

function headCard(view, head) {
  return [
    el("header", {}, el("h3", {}, `Head ${headName(view, head)}`),
      el("button", { type: "button", class: "quiet", "aria-label": "Unpin this head", on: { click: () => pin(view, null) } }, "×")),
    el("p", { class: "about" }, ownerSentence(view, head)),
    el("div", {}, importanceRows(view, head)),
    el("div", {}, neighbours(view, head)),
  ].filter(Boolean);
}

/* What else is known of a kept head, below the map. */
function headDetail(view, head) {
  const { probes, gates } = view.study;
  return [
    measureRows("Roles", heldBy(view, head).map((held) => barRow({ name: held.role, value: percent(held.score), share: held.score, tick: held.control, note: chance(held.p) })), "Attention given to the role’s targets; vertical line: the control."),
    measureRows("Probes", Object.entries(probes || {}).map(([name, probe]) => probeRow(view, name, probe, head)), "Vertical line: chance."),
    measureRows("Gates", Object.entries(gates || {}).map(([name, values]) => gateRow(view, name, values, head))),
    attentionRows(view, head),
    exampleView(view, head),
  ].filter(Boolean).map((block) => el("div", {}, block));
}

function ownerSentence(view, head) {
  const first = owner(view, head);
  if (!first) return "This head was pruned.";
  const names = view.members[head].map((task) => task.name);
  const among = names.length ? `Top head of ${names.join(", ")} at α = ${percent(view.state.alpha)}.` : `Top head of no task at α = ${percent(view.state.alpha)}.`;
  return view.tasks.length > 1 ? `Most important to ${first.name}. ${among}` : among;
}

/* A name, a bar, a number: the one kind of row a card is made of. */
function barRow({ name, mark, value, error, share, note, tick, second, colour }) {
  const bar = el("span", { class: `meter ${colour || ""}` }, el("i", { style: { width: `${100 * clamp(share || 0)}%` } }),
    known(second) ? el("u", { style: { width: `${100 * clamp(second)}%` } }) : null,
    known(tick) ? el("s", { style: { left: `${100 * clamp(tick)}%` } }) : null);
  return el("div", { class: "bar-row" }, el("span", { class: "name" }, mark, name), bar, el("span", { class: "value" }, value, error ? el("small", {}, error) : null), el("span", { class: "rank" }, note || ""));
}

function importanceRows(view, head) {
  const rows = view.tasks.map((task) => {
    const error = task.stderr && known(task.stderr[head]) ? ` ± ${scoreText(task, task.stderr[head])}` : "";
    const then = task.other && task.other.rank[head] ? ` (${task.other.rank[head]})` : "";
    return barRow({ name: task.name, mark: dot(task.position), colour: taskClass(task.position), value: scoreText(task, task.scores[head]), error,
      share: task.scores[head] / task.high, note: task.rank[head] ? `#${task.rank[head]}${then}${topChance(view, task, head)}` : "cut",
      second: task.other ? task.other.scores[head] / task.other.high : null });
  });
  const compare = view.study.compare, chances = view.tasks.some((task) => task.entry.top_probability);
  return [el("h4", {}, "Importance and rank"), el("div", { class: "bars" }, rows),
    chances ? el("p", { class: "hint" }, `Percent: how often among the top ${percent(startAlpha(view))} when examples are resampled.`) : null,
    compare ? el("p", { class: "hint" }, `Thin bar and rank in brackets: ${compare.name}.`) : null];
}

/* The probability to be a top head was measured at the fraction that the study starts from. */
const startAlpha = (view) => (view.study.dissociation ? view.study.dissociation.default : ((view.study.reproduce || {}).settings || {}).alpha);

function topChance(view, task, head) {
  const chances = task.entry.top_probability;
  return chances && known(flat(chances)[head]) ? `, ${percent(flat(chances)[head])}` : "";
}

const measureRows = (title, rows, note) => (rows.length ? [el("h4", {}, title), el("div", { class: "bars" }, rows), note ? el("p", { class: "hint" }, note) : null] : null);

function probeRow(view, name, probe, head) {
  const value = flat(probe.accuracy)[head];
  return barRow({ name, value: fixed(value), share: value, tick: probe.chance });
}

function gateRow(view, name, gates, head) {
  const task = view.byName[name], value = flat(gates)[head];
  return barRow({ name, mark: task ? dot(task.position) : null, colour: task ? taskClass(task.position) : "", value: fixed(value), share: value });
}

function attentionRows(view, head) {
  const seen = (view.study.attention || {})[headName(view, head)];
  if (!seen) return null;
  const names = { previous: "previous token", next: "next token", first: "first token", separator: "separator" };
  const rows = Object.keys(names).filter((key) => known(seen[key]))
    .map((key) => barRow({ name: names[key], value: percent(seen[key]), share: seen[key] }));
  return [el("h4", {}, "Looks at"), el("div", { class: "bars" }, rows),
    known(seen.entropy) ? el("p", { class: "hint" }, `Entropy ${number(seen.entropy)}`) : null];
}

function exampleView(view, head) {
  const name = headName(view, head);
  const usable = (view.study.examples || []).filter((example) => example.attention[name]);
  if (!usable.length) return null;
  const at = Math.min(view.state.example, usable.length - 1);
  const choose = (key) => { view.state.example = Number(key); drawCard(view); };
  const left = view.study.examples_left_out;
  return [el("h4", {}, "Attention in a sentence"),
    usable.length > 1 ? el("div", { class: "segments small" }, segments(usable.map((_, i) => ({ key: `${i}`, label: `${i + 1}` })), `${at}`, choose)) : null,
    attentionLines(usable[at].tokens, unpack(usable[at].attention[name])),
    left ? el("p", { class: "hint" }, `${left} more omitted to keep the page small.`) : null];
}

const unpack = (text) => Array.from(atob(text), (c) => c.charCodeAt(0) / 255);

const short = (token) => (token.length > 13 ? `${token.slice(0, 12)}…` : token);

/* Each token on the left, what it attends to on the right; pointing at a token leaves only its own lines. */
function attentionLines(tokens, weights) {
  const n = tokens.length, step = 17, width = 250, from = 88, to = 162;
  const y = (i) => step * (i + 0.5);
  const groups = tokens.map((token, i) => {
    const lines = tokens.map((_, j) => weights[i * n + j] < 0.04 ? null
      : svg("line", { x1: from, y1: y(i), x2: to, y2: y(j), "stroke-width": 0.6 + 2.4 * weights[i * n + j], "stroke-opacity": clamp(weights[i * n + j] * 1.1, 0.12, 1) }));
    return svg("g", { class: "from" }, svg("rect", { x: 0, y: step * i, width: from, height: step, fill: "transparent" }),
      svg("text", { x: from - 6, y: y(i), "text-anchor": "end" }, short(token)), lines);
  });
  const right = tokens.map((token, j) => svg("text", { x: to + 6, y: y(j) }, short(token)));
  return svg("svg", { class: "attention", viewBox: `0 0 ${width} ${step * n}`, role: "img", "aria-label": "Attention between the tokens of a sentence" }, groups, right);
}

function neighbours(view, head) {
  const near = nearestHeads(view, head);
  if (!near.length) return null;
  return [el("h4", {}, "Most alike"), el("p", { class: "chips" }, near.map(({ head: other, distance }) =>
    el("button", { type: "button", title: `distance ${number(distance, 2)} standard deviations`, on: { click: () => pin(view, other) } }, headName(view, other))))];
}
