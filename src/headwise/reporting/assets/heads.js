/* What can be said about heads from their scores: order, selection, ownership, likeness. Heads are counted
   layer by layer: head h of layer l is l * H + h. */
const flat = (matrix) => matrix.flat().map((value) => (known(value) ? value : NaN));
const headName = (view, head) => `${Math.floor(head / view.H)}.${head % view.H}`;

/* Heads from the highest score down; equal scores keep their position, cut heads are not ranked. */
function ranking(scores) {
  const heads = [...scores.keys()].filter((head) => !Number.isNaN(scores[head]));
  return heads.sort((a, b) => scores[b] - scores[a] || a - b);
}

function describeTask(study, task, position) {
  const entry = study.importance[task.name];
  const scores = flat(entry.scores);
  const order = ranking(scores);
  const rank = Array(scores.length).fill(null);
  order.forEach((head, i) => { rank[head] = i + 1; });
  const total = sum(order.map((head) => Math.abs(scores[head]))) || 1;
  const other = study.compare && study.compare.importance[task.name];
  return {
    name: task.name, short: task.short, letter: task.letter, position, entry, scores, order, rank,
    chances: entry.top_probability ? flat(entry.top_probability) : null,
    share: scores.map((score) => score / total),
    stderr: entry.stderr ? flat(entry.stderr) : null,
    low: scores[order[order.length - 1]], high: scores[order[0]],
    other: other ? otherRanks(flat(other)) : null,
  };
}

function otherRanks(scores) {
  const rank = Array(scores.length).fill(null);
  const order = ranking(scores);
  order.forEach((head, i) => { rank[head] = i + 1; });
  return { scores, rank, high: scores[order[0]] };
}

/* As many decimals as the highest score of the task needs for three digits. */
function scoreText(task, score) {
  const decimals = 2 - Math.floor(Math.log10(Math.abs(task.high) || 1));
  if (!known(score)) return "–";
  return (decimals > 6 ? score.toExponential(1) : score.toFixed(clamp(decimals, 0, 6))).replace("-", "−");
}

const taken = (view) => Math.floor(view.state.alpha * view.L * view.H + 1e-6);

/* The top k heads of every task at the present alpha. */
function select(view) {
  const k = taken(view);
  view.sets = view.tasks.map((task) => new Set(task.order.slice(0, k)));
  view.members = [...Array(view.L * view.H).keys()].map((head) =>
    view.tasks.filter((task, i) => view.sets[i].has(head)));
}

/* Whether a head belongs to a task's set beyond doubt: in 95 % of resamples where the set was resampled at this α,
   elsewhere by 1.64 standard errors above the first head outside. Unknown standard errors count as 0. */
function certain(view, task, head) {
  if (task.chances && Math.abs(view.state.alpha - startAlpha(view)) < 0.005) return (task.chances[head] ?? 1) >= 0.95;
  const next = task.order[taken(view)];
  if (!task.stderr || next === undefined) return true;
  return task.scores[head] - 1.64 * task.stderr[head] > task.scores[next];
}

/* The task whose total importance rests most on this head, as a share. */
function owner(view, head) {
  const able = view.tasks.filter((task) => known(task.share[head]));
  return able.length ? able.reduce((best, task) => (task.share[head] > best.share[head] ? task : best)) : null;
}

const shared = (view, i, j) => [...view.sets[i]].filter((head) => view.sets[j].has(head)).length;

function perLayer(view, i) {
  const counts = Array(view.L).fill(0);
  for (const head of view.sets[i]) counts[Math.floor(head / view.H)] += 1;
  return counts;
}

/* All that was measured of each head, every measure brought to mean 0 and spread 1. */
function profiles(view) {
  const { probes, gates } = view.study;
  const measures = [
    ...view.tasks.map((task) => task.scores),
    ...Object.values(probes || {}).map((probe) => flat(probe.accuracy)),
    ...Object.values(gates || {}).map(flat),
  ];
  return measures.map(standardized);
}

function standardized(values) {
  const present = values.filter(known);
  const mean = sum(present) / present.length;
  const spread = Math.sqrt(sum(present.map((v) => (v - mean) ** 2)) / present.length) || 1;
  return values.map((v) => (v - mean) / spread);
}

/* The heads whose profile lies nearest, by root mean square distance over the measures. */
function nearestHeads(view, head, count = 5) {
  view.profiles = view.profiles || profiles(view);
  const distance = (other) => Math.sqrt(sum(view.profiles.map((m) => (m[other] - m[head]) ** 2)) / view.profiles.length);
  return [...Array(view.L * view.H).keys()]
    .filter((other) => other !== head)
    .map((other) => ({ head: other, distance: distance(other) }))
    .filter(({ distance: d }) => known(d))
    .sort((a, b) => a.distance - b.distance)
    .slice(0, count);
}
