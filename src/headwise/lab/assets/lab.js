/* The page as a whole: what a change sets off, examples, keys, the start. */
function refresh(changes) {
  for (const name of ["text", "other", "choices"]) { const box = document.getElementById(name); if (box.value !== state[name]) box.value = state[name]; grow(box); }
  const count = closedHeads().length;
  put("count", `${count} of ${living().length} heads closed`);
  put("thumb", `${count} closed`);
  if (changes && ("text" in changes || "other" in changes)) { look.effects = null; look.mode = "tasks"; }
  paintMap();
  drawControls();
  read(look.at);
  toAddress();
  for (const [name, list] of [["undo", history_.past], ["redo", history_.future]]) document.querySelectorAll(`[data-do="${name}"]`).forEach((button) => { button.disabled = !list.length; });
  answerSoon();
  lookSoon();
  measureSoon();
}

let frame = 0;
function answerSoon() { cancelAnimationFrame(frame); frame = requestAnimationFrame(fetchAnswers); }

async function fetchAnswers() {
  if (!state.text.trim()) { showAnswers({ before: {}, after: {} }); return; }
  const start = performance.now();
  try {
    const answers = await ask("answers", asked());
    look.answers = answers;
    showAnswers(answers);
    say(null);
    put("time", `${Math.round(performance.now() - start)} ms`);
  } catch (error) { if (!(error instanceof Unheard)) say(error.message); }
}

function say(problem) {
  place("banner").hidden = !problem;
  if (problem) put("banner", problem);
}

let measuring = 0;
function measureSoon() {
  clearTimeout(measuring);
  hangUp("scores");
  if (ABLE.scores && place("auto").checked && lab.tasks.some((task) => task.rows)) measuring = setTimeout(measure, 600);
}

async function measure() {
  look.scores = {};
  const button = document.querySelector('[data-do="measure"]'), flips = {};
  button.textContent = "Stop measuring";
  try {
    for await (const score of stream("scores", asked())) {
      showScore(score);
      if (score.problem) continue;
      look.scores[score.task] = score;
      flips[score.task] = score;
      put("measured", `${score.n} of ${score.of} examples`);
      drawFlips(flips);
    }
    put("measured", "measured");
  } catch (error) {
    if (!(error instanceof Unheard)) put("measured", error.message);
    else if (button.textContent !== "Stop measuring") put("measured", "stopped");
  } finally { button.textContent = "Measure development scores"; }
}

/* Development examples whose answer this mask changes. */
function drawFlips(scores) {
  const some = Object.values(scores).flatMap((one) => one.examples.slice(0, 2).map((example) => [one.task, example])).slice(0, 4);
  put("flips", some.length ? "changed by this mask: " : null, some.map(([task, example]) =>
    el("button", { type: "button", class: "link", title: example.text, on: { click: () => useExample(task, example) } }, `${shortName(task)} ${example.at}`)));
}

function useExample(task, example) {
  look.task = task;
  place("why-task").value = task;
  if (example.other) showSecond(true);
  change({ text: example.text, other: example.other, choices: example.choices.length ? example.choices.join("\n") : state.choices });
  put("example-note", example.label ? `labelled ${example.label}` : "");
}

async function showExample(move) {
  const task = place("example-task").value, about = lab.tasks.find((one) => one.name === task);
  if (!about?.rows) return;
  look.example = (look.example + move + about.rows) % about.rows;
  try {
    const page = await ask("examples", { task, start: look.example });
    useExample(task, page.rows[0]);
    put("example-note", `${look.example + 1} of ${page.of}${page.rows[0].label ? `, labelled ${page.rows[0].label}` : ""}`);
  } catch (error) { if (!(error instanceof Unheard)) say(error.message); }
}

const grow = (box) => { box.style.height = "auto"; box.style.height = `${Math.min(180, box.scrollHeight + 2)}px`; };

function setUpText() {
  for (const name of ["text", "other", "choices"]) {
    const box = document.getElementById(name);
    let fresh = true;
    box.addEventListener("input", () => { change({ [name]: box.value }, !fresh); fresh = false; });
    box.addEventListener("blur", () => { fresh = true; });
  }
  const two = lab.tasks.some((task) => task.asks.length > 1) || lab.form !== "encoder"; /* pairs, contexts, templates */
  document.querySelector('[data-do="second"]').hidden = !two || !ABLE.examples;
  showSecond(two && Boolean(state.other || lab.tasks.some((task) => task.pair)));
  document.getElementById("choices").hidden = !lab.tasks.some((task) => task.choices);
}

function showSecond(on) {
  document.getElementById("other").hidden = !on;
  document.querySelector('[data-do="second"]').setAttribute("aria-expanded", on);
}

const ACTS = {
  second: () => { const box = document.getElementById("other"); showSecond(box.hidden); if (!box.hidden) box.focus(); else change({ other: "" }); },
  undo, redo, why: showWhy, flip: searchFlip, keep: keepMask,
  open: () => change({ gates: allOpen() }),
  share: async (event) => { toAddress(); await copyText(location.href, event.target); },
  python: () => takeAway("python"), file: () => takeAway("file"), model: () => takeAway("model"),
  "next-example": () => showExample(1), "previous-example": () => showExample(-1),
  measure: (event) => { if (event.target.textContent === "Stop measuring") { event.target.textContent = "…"; hangUp("scores"); } else measure(); },
  zoom: (event) => { const on = place("map").classList.toggle("zoomed"); event.target.setAttribute("aria-pressed", on); event.target.textContent = on ? "Fit" : "Zoom"; },
  theme: () => { const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches; root.dataset.theme = dark ? "light" : "dark"; },
};

function keys(event) {
  const typing = /^(TEXTAREA|INPUT|SELECT)$/.test(event.target.tagName) && event.target.type !== "range" && event.target.type !== "checkbox";
  const command = event.ctrlKey || event.metaKey;
  if (command && event.key.toLowerCase() === "z" && !typing) { (event.shiftKey ? redo : undo)(); event.preventDefault(); }
  if (typing || command || event.altKey) return;
  const acts = { "/": () => document.getElementById("text").focus(), o: () => change({ gates: allOpen() }), w: showWhy, m: () => cells[look.at].focus() };
  if (acts[event.key]) { acts[event.key](); event.preventDefault(); }
}

function fillSelects() {
  const options = (tasks) => tasks.map((task) => el("option", { value: task.name }, task.short));
  put("why-task", options(taskRows()));
  look.task = taskRows()[0]?.name;
  place("why-task").addEventListener("change", (event) => { look.task = event.target.value; });
  const with_ = lab.tasks.filter((task) => task.rows);
  put("example-task", options(with_));
  document.querySelector(".tries label").hidden = !with_.length;
  for (const name of ["next-example", "previous-example", "measure"]) document.querySelector(`[data-do="${name}"]`).hidden = !with_.length;
  place("example-task").addEventListener("change", () => { look.example = -1; showExample(1); });
  place("auto").closest("label").hidden = !with_.length;
}

function setUpLooking() {
  place("layer").max = lab.layers - 1;
  place("head").max = lab.heads - 1;
  const go = () => { const i = Number(place("layer").value) * lab.heads + Number(place("head").value); if (alive(i)) lookAt(i); };
  for (const name of ["layer", "head"]) place(name).addEventListener("input", go);
}

async function start() {
  try { Object.assign(lab, await open()); } catch { say("The lab does not answer. Is headwise lab still running?"); return; }
  document.title = `${lab.name} · headwise lab`;
  put("facts", el("b", {}, lab.name), ` · ${lab.layers} × ${lab.heads} heads${lab.kv_heads !== lab.heads ? `, ${lab.kv_heads} key-value heads` : ""} · ${lab.tasks.length} task${lab.tasks.length === 1 ? "" : "s"}`);
  for (const [able, part] of [["why", "why"], ["flip", "flip"], ["export", "export"]]) place(part).closest(".panel").hidden = !ABLE[able];
  document.querySelector(".words").hidden = !ABLE.attention;
  place("close").hidden = !ABLE.close;
  place("report").hidden = !lab.report;
  place("atlas").hidden = !lab.atlas;
  place("cutting").hidden = !lab.exports;
  state.alpha = lab.alpha;
  drawMap();
  drawAnswers();
  fillSelects();
  setUpLooking();
  Object.assign(state, fromAddress());
  setUpText();
  document.addEventListener("click", (event) => { const button = event.target.closest("[data-do]"); if (button && ACTS[button.dataset.do]) ACTS[button.dataset.do](event); });
  document.addEventListener("keydown", keys);
  place("as-text").closest("details").addEventListener("toggle", writeMap);
  addEventListener("hashchange", () => change(fromAddress()));
  look.at = living()[0];
  refresh();
  lookAt(look.at);
  if (!state.text && !ABLE.examples) change({ text: "The film was long, but the music in it was wonderful." }, true);
  if (!state.text && lab.tasks.some((task) => task.rows)) showExample(0);
}

start();
