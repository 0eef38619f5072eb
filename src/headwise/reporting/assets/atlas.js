/* Maps of heads by role, with filters, and a card for the head that was chosen. */
const { models, changes, share } = page.atlas;
const role = (name) => document.querySelector(`[data-role="${name}"]`);
const key = (head) => `${head.layer}.${head.head}`;
const state = { role: null, needed: "", changed: false, sink: false, model: 0, head: null, query: null };
const roleOf = (head) => (state.sink ? head.role : head.beside ?? head.role);

/* The most frequent roles have colours of their own, the sink a grey one; the list repeats after ten. */
function counted() {
  const counts = new Map();
  for (const model of models) for (const head of model.heads) if (roleOf(head)) counts.set(roleOf(head), (counts.get(roleOf(head)) || 0) + 1);
  return counts;
}
let counts = counted(), named = [];
const sink = "first";
const colour = (name) => (name === sink ? "sink" : taskClass(named.filter((each) => each !== sink).indexOf(name)));
const byCount = () => [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
const tasks = [...new Set(models.flatMap((model) => model.tasks))];
const changedHeads = new Set(changes.map((c) => `${c.model}:${c.layer}.${c.head}`));
const about = new Map(models.flatMap((model) => model.roles.map((r) => [r.name, r])));

const hasRole = (head, name) => head.roles.some((r) => r.role === name && r.holds);
function passes(model, head) {
  if (state.role === "none" ? head.role : state.role && !hasRole(head, state.role)) return false;
  if (state.needed === "none" && head.needed.length) return false;
  if (state.needed === "any" && !head.needed.length) return false;
  if (state.needed.startsWith("task:") && !head.needed.includes(state.needed.slice(5))) return false;
  return !state.changed || changedHeads.has(`${model.name}:${key(head)}`);
}

function cell(model, number, head) {
  const best = head.roles.find((r) => r.role === roleOf(head));
  const shown = state.role && state.role !== "none" ? head.roles.find((r) => r.role === state.role) : best;
  const pressed = state.model === number && state.head === key(head);
  const name = state.role && state.role !== "none" && shown && shown.holds ? state.role : roleOf(head);
  const classes = [name ? colour(name) : "none", passes(model, head) ? "" : "dim"];
  if (changedHeads.has(`${model.name}:${key(head)}`)) classes.push("changed");
  return el("button", {
    type: "button", "data-head": `${number}:${key(head)}`, "aria-pressed": pressed,
    class: classes.filter(Boolean).join(" ") || null,
    style: { "--lift": shown ? clamp(shown.lift || 0) : 0 },
    title: `layer ${head.layer}, head ${head.head}: ${roleOf(head) || "no role"}`,
    "aria-label": `layer ${head.layer}, head ${head.head}: ${roleOf(head) || "no role"}`,
    on: { click: () => choose(number, key(head)) },
  });
}

function map(model, number) {
  const at = new Map(model.heads.map((head) => [key(head), head]));
  const rows = [];
  for (let layer = model.layers - 1; layer >= 0; layer -= 1) {
    rows.push(el("span", { class: "name" }, `${layer}`));
    for (let h = 0; h < model.heads_per_layer; h += 1) {
      const head = at.get(`${layer}.${h}`);
      rows.push(head ? cell(model, number, head) : el("span", { class: "gone" }));
    }
  }
  const columns = `2rem repeat(${model.heads_per_layer}, minmax(0, 1fr))`;
  return el("figure", {}, el("figcaption", {}, el("h3", {}, model.name), el("p", {}, `${model.layers} layers of ${model.heads_per_layer} heads`)),
    el("div", { class: "headmap", style: { "grid-template-columns": columns, "max-width": `${2 + 2.6 * model.heads_per_layer}rem` } }, rows));
}

function table(headings, rows) {
  return el("table", {}, el("thead", {}, el("tr", {}, headings.map((h, i) => el("th", { scope: "col", class: i ? "n" : null }, h)))), el("tbody", {}, rows));
}

function sentence(model, head) {
  const example = model.examples.find((each) => each.attention[key(head)]);
  if (!example) return null;
  const size = example.tokens.length;
  const weights = Uint8Array.from(atob(example.attention[key(head)]), (c) => c.charCodeAt(0));
  const word = (token) => token.replace(/^[▁Ġ]+/, "") || token; // how tokenizers write a space
  const query = state.query === null ? size >> 1 : Math.min(state.query, size - 1);
  return [el("h4", {}, `Where “${word(example.tokens[query])}” looks; choose another token`),
    el("div", { class: "sentence" }, example.tokens.map((token, k) => {
      const t = weights[query * size + k] / 255;
      return el("button", { type: "button", "aria-pressed": k === query, title: percent(t, 0),
        style: { background: shade(t), color: inkOn(t) }, on: { click: () => { state.query = k; card(); } } }, word(token));
    }))];
}

function card() {
  const model = models[state.model];
  const head = model.heads.find((each) => key(each) === state.head);
  if (!head) return;
  const scored = head.roles.filter((r) => r.holds || r.lift > 0.02 || about.get(r.role).describes);
  scored.sort((a, b) => about.get(a.role).describes - about.get(b.role).describes);
  const rows = scored.slice(0, 14).map((r) => el("tr", { class: r.holds ? "holds" : null },
    el("th", { scope: "row", title: about.get(r.role).about }, r.role), el("td", { class: "n" }, percent(r.score)),
    el("td", { class: "n" }, `${percent(r.low).replace(/\s*%/, "")} to ${percent(r.high)}`), el("td", { class: "n" }, percent(r.control)), el("td", { class: "n" }, (chance(r.p) || "–").replace(/^p( =)? /, ""))));
  const rank = (task) => 1 + model.heads.filter((other) => other.needs[task] > head.needs[task]).length;
  const needs = Object.keys(head.needs).map((task) => el("tr", { class: head.needed.includes(task) ? "holds" : null },
    el("th", { scope: "row" }, task), el("td", { class: "n" }, number(head.needs[task])), el("td", { class: "n" }, `${rank(task)} of ${model.heads.length}`)));
  const encodes = Object.entries(head.encodes).map(([task, score]) => el("tr", {}, el("th", { scope: "row" }, task), el("td", { class: "n" }, fixed(score))));
  const change = changes.find((c) => c.model === model.name && key(c) === key(head));
  role("card").replaceChildren(...[
    el("h3", {}, `${models.length > 1 ? `${model.name}, ` : ""}layer ${head.layer}, head ${head.head}`),
    el("p", { class: "hint" }, roleOf(head) ? about.get(roleOf(head)).about : "no role holds"),
    change ? el("p", { class: "hint" }, `in ${models[0].name}: ${change.before || "no role"}`) : null,
    table(["role", "score", "95 % CI", "control", "p"], rows),
    needs.length ? [el("h4", {}, `Tasks (bold: among the ${percent(share)} of heads it needs most)`), table(["task", "importance", "rank"], needs)] : null,
    encodes.length ? [el("h4", {}, "What a probe reads from it"), table(["property", "score"], encodes)] : null,
    sentence(model, head),
  ].flat(Infinity).filter((child) => child !== null));
}

function choose(model, head) {
  Object.assign(state, { model, head, query: state.query });
  draw();
  card();
}

function draw() {
  counts = counted();
  named = byCount();
  const kept = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.head : null;
  role("maps").replaceChildren(...models.map(map));
  if (kept) role("maps").querySelector(`[data-head="${kept}"]`)?.focus();
  const seen = models.map((model) => model.heads.filter((head) => passes(model, head)).length);
  role("count").textContent = models.map((model, i) => `${seen[i]} of ${model.heads.length} heads${models.length > 1 ? ` of ${model.name}` : ""}`).join(", ");
  const entry = (name, label, mark) => el("button", { type: "button", "aria-pressed": state.role === name, "data-key": name,
    on: { click: () => { state.role = state.role === name ? null : name; draw(); } } }, el("i", { class: `dot ${mark}` }), label);
  role("legend").replaceChildren(...named.map((name) => entry(name, `${name} ${counts.get(name)}`, colour(name))), entry("none", "no role", ""));
}

function begin() {
  const options = [["", "any head"], ["any", "at least one task"], ["none", "no task"], ...tasks.map((task) => [`task:${task}`, task])];
  role("needed").append(...options.map(([value, label]) => el("option", { value }, label)));
  role("needed").closest("label").hidden = !tasks.length;
  role("needed").addEventListener("change", (event) => { state.needed = event.target.value; draw(); });
  role("changes").hidden = !changes.length;
  role("changed").addEventListener("change", (event) => { state.changed = event.target.checked; draw(); });
  role("sink").addEventListener("change", (event) => { state.sink = event.target.checked; state.role = null; draw(); card(); });
  const all = [...about.values()];
  role("roles").append(...all.map((r) => el("tr", {}, el("th", { scope: "row" }, r.name), el("td", {}, r.about), models.map((model) => {
    const own = model.heads.map((head) => [head, head.roles.find((each) => each.role === r.name)]).filter(([, each]) => each);
    const [best, score] = own.reduce((a, b) => (!a || (b[1].lift ?? -9) > (a[1].lift ?? -9) ? b : a), null) || [];
    const held = r.describes ? "–" : own.filter(([, each]) => each.holds).length;
    return [el("td", {}, `${held}`), el("td", {}, best ? `${key(best)} (${percent(score.score)}, control ${percent(score.control)})` : "–")];
  }))));
  draw();
  const first = models[0].heads.filter((head) => head.role);
  const lift = (head) => head.roles.find((r) => r.role === roleOf(head)).lift;
  const best = first.reduce((a, b) => (!a || lift(b) > lift(a) ? b : a), null);
  if (best) choose(0, key(best));
}

begin();
