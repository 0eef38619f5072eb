/* Why an answer is given, what flips it, masks that are kept, and what is taken away. */
async function showWhy() {
  const task = look.task;
  await attempt("why", async () => {
    const reason = await ask("why", { ...asked(), task });
    look.effects = { task, values: reason.effects.flat() };
    look.mode = "effect";
    const order = living().filter((i) => known(look.effects.values[i])).sort((a, b) => Math.abs(look.effects.values[b]) - Math.abs(look.effects.values[a])).slice(0, 8);
    const most = Math.abs(look.effects.values[order[0]]) || 1;
    put("why", el("p", {}, `The answer of ${shortName(task)} is ahead by `, el("b", {}, reason.margin.toFixed(2)), ". To first order, closing a head takes this from it:"),
      el("ol", { class: "bars" }, order.map((i) => el("li", {}, el("button", { type: "button", class: "link", on: { click: () => cells[i].focus() } }, nameOf(i)),
        el("span", { class: "meter" }, el("i", { class: look.effects.values[i] < 0 ? "minus" : "", style: { width: `${(100 * Math.abs(look.effects.values[i])) / most}%` } })), el("span", {}, signed(look.effects.values[i]))))),
      el("p", { class: "quiet" }, "+ supports the answer, − speaks against it; the map shows all heads."));
    drawSets();
    paintMap();
  });
}

let flipping = null;
async function searchFlip() {
  if (flipping) { hangUp("flip"); return; }
  const task = look.task, margins = [], start = [...state.gates];
  flipping = task;
  document.querySelector('[data-do="flip"]').textContent = "Stop";
  try {
    await attempt("flip", async () => {
      let closed = [], passed = null;
      for await (const found of stream("flip", { ...asked(), task })) {
        if (found.done) { passed = found; break; }
        margins.push(found.margin);
        closed = found.closed;
        put("flip", flipChart(margins, closed), el("p", { class: "quiet" }, `${closed.length} heads closed …`));
      }
      put("flip", flipChart(margins, closed), ...flipWords(task, passed, start));
    });
  } finally {
    flipping = null;
    document.querySelector('[data-do="flip"]').textContent = "Search";
  }
}

function flipWords(task, found, start) {
  if (!found) return [];
  if (!found.found) return [el("p", {}, `No set was found: after ${found.tried} heads none of those left supports the answer of ${shortName(task)}.`)];
  const heads = found.found.map(([l, h]) => l * lab.heads + h);
  const use = () => { const gates = [...start]; for (const i of heads) gates[i] = 0; change({ gates }); };
  return [el("p", {}, el("b", {}, `${heads.length} head${heads.length === 1 ? "" : "s"}`), ` flip ${shortName(task)}; none of them can be spared. ${found.flips} of ${found.random} random sets of that size flip it too.`),
    el("p", { class: "quiet" }, heads.map(nameOf).join(", ")), el("button", { type: "button", "data-do": "use", on: { click: use } }, "Close these")];
}

/* How far the answer is ahead, head by head. */
function flipChart(margins, closed) {
  const width = 460, height = 120, x = (i) => 34 + ((width - 54) * i) / Math.max(1, margins.length - 1), top = Math.max(...margins, 0.1), low = Math.min(...margins, 0);
  const y = (v) => 16 + ((height - 34) * (top - v)) / (top - low || 1);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": `Margin of the answer after each head: ${margins.map((m) => m.toFixed(2)).join(", ")}` },
    svg("line", { x1: 30, x2: width - 10, y1: y(0), y2: y(0), class: "zero" }), svg("text", { x: 26, y: y(0) + 4, "text-anchor": "end" }, "0"), svg("text", { x: 26, y: y(top) + 4, "text-anchor": "end" }, top.toFixed(1)),
    svg("path", { d: margins.map((m, i) => `${i ? "L" : "M"}${x(i).toFixed(1)} ${y(m).toFixed(1)}`).join(""), class: "line" }),
    margins.map((m, i) => [svg("circle", { cx: x(i), cy: y(m), r: 3.5 }), i && margins.length < 18 ? svg("text", { x: x(i), y: y(m) - 7, "text-anchor": "middle" }, closed[i - 1]?.join(".")) : null]));
}

function keepMask() {
  const name = place("name").value.trim() || `mask ${kept.length + 1}`;
  const old = kept.findIndex((one) => one.name === name);
  const mask = { name, gates: [...state.gates], close: state.close, seed: state.seed, answers: look.answers, scores: { ...look.scores } };
  if (old >= 0) kept[old] = mask; else kept.push(mask);
  place("name").value = "";
  drawKept();
}

function drawKept() {
  put("kept", kept.length ? el("ul", { class: "masks" }, kept.map((mask, i) => el("li", {},
    el("button", { type: "button", class: "link", on: { click: () => change({ gates: [...mask.gates], close: mask.close, seed: mask.seed }) } }, mask.name), ` ${closedHeads(mask.gates).length} closed`,
    el("button", { type: "button", class: "link quiet", "aria-label": `Forget ${mask.name}`, on: { click: () => { kept.splice(i, 1); drawKept(); } } }, "×")))) : el("p", { class: "quiet" }, "Keep the present mask under a name, then compare two."),
  kept.length > 1 ? comparison() : null);
}

function comparison() {
  const pick = (name, at) => el("select", { "aria-label": `${name} mask to compare`, "data-part": `compare-${name}`, on: { change: drawCompared } }, kept.map((mask, i) => el("option", { value: i, selected: i === at ? "" : null }, mask.name)));
  setTimeout(drawCompared);
  return [el("p", { class: "row" }, "Compare ", pick("first", kept.length - 2), " with ", pick("second", kept.length - 1)), el("div", { "data-part": "compared" })];
}

function drawCompared() {
  const [a, b] = ["first", "second"].map((name) => kept[Number(place(`compare-${name}`)?.value)]);
  if (!a || !b) return;
  const [mine, other] = [a, b].map((mask) => new Set(closedHeads(mask.gates)));
  const both = [...mine].filter((i) => other.has(i)).length;
  const cell = (mask, task) => { const answer = mask.answers?.after[task.name], score = mask.scores[task.name]; return el("td", {}, answer && !answer.problem ? wordOf(answer, null) : "–", score ? el("small", { class: "quiet" }, ` ${score.value.toFixed(3)}`) : null); };
  put("compared", el("p", {}, `${both} heads closed in both, ${mine.size - both} only in ${a.name}, ${other.size - both} only in ${b.name}.`),
    el("table", {}, el("thead", {}, el("tr", {}, ["task", a.name, b.name].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, taskRows().map((task) => el("tr", {}, el("th", { scope: "row" }, task.short), cell(a, task), cell(b, task))))));
}

async function takeAway(what) {
  await attempt("export", async () => {
    const name = (place("name").value.trim() || `mask-${closedHeads().length}`).replace(/[^A-Za-z0-9_-]+/g, "-");
    if (what === "model") put("export", el("p", { class: "quiet" }, "Writing, opening and comparing …"));
    const written = await ask("masks", { ...asked(), what, name, form: place("form").value });
    if (what === "file") save(written.text, `${name}.json`);
    if (what === "model") put("export", el("p", {}, `${written.form} model without ${written.heads} heads, ${written.checked}: `, el("code", {}, written.path)));
    else put("export", el("pre", {}, written.text), el("button", { type: "button", on: { click: (event) => copyText(written.text, event.target) } }, "Copy"));
  });
}

function save(text, name) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type: "application/json" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function copyText(text, button) {
  const before = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Copy by hand"; }
  setTimeout(() => { button.textContent = before; }, 1500);
}

/* Errors are said where the answer would have stood. */
async function attempt(name, run) {
  try { await run(); } catch (error) {
    if (!(error instanceof Unheard)) put(name, el("p", { class: "problem" }, error.message));
  }
}
