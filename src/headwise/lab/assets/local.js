/* Who answers: the browser itself, by a graph of the model with gates as an input. */
const ABLE = { why: false, flip: false, attention: false, scores: false, examples: false, export: false, close: false };
class Unheard extends Error {}
const hangUp = () => {};
let words = null, session = null, turn = 0, running = Promise.resolve();
const intact = new Map(); /* answers with all heads, of the last texts */

async function open() {
  const about = await (await fetch("about.json")).json();
  words = about.static;
  ort.env.wasm.numThreads = 1; /* more would need headers that a plain web server does not send */
  ort.env.wasm.wasmPaths = new URL("./", location.href).href;
  session = await ort.InferenceSession.create("model.onnx");
  return about;
}

async function* stream() { throw new Error("this page has no server: headwise lab has it"); }

/* One forward after another; a newer request replaces those that wait. */
function ask(name, body) {
  if (name !== "answers") return Promise.reject(new Error("this page has no server: headwise lab has it"));
  turn += 1;
  const mine = turn;
  const answer = running.then(async () => {
    if (mine !== turn) throw new Unheard();
    const key = body.text, open_ = body.gates.flat().every((gate) => gate === 1);
    if (!intact.has(key)) intact.set(key, await answersTo(body.text, body.gates.map((row) => row.map(() => 1))));
    if (intact.size > 50) intact.delete(intact.keys().next().value);
    const before = intact.get(key);
    return { before, after: open_ ? before : await answersTo(body.text, body.gates) };
  });
  running = answer.catch(() => {});
  return answer;
}

async function scoresOf(ids, gates) {
  const feeds = { input_ids: new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]), gates: new ort.Tensor("float32", Float32Array.from(gates.flat()), [gates.length, gates[0].length]) };
  return session.run(feeds);
}

async function answersTo(text, gates) {
  const whole = encode(text), split = encodeWords(text.split(/\s+/).filter(Boolean)), answers = {};
  const long = (ids) => ids.length > words.max_length && { problem: `longer than ${words.max_length} sub-words` };
  const same = whole.join() === split.ids.join();
  const one = long(whole) ? null : await scoresOf(whole, gates);
  const two = long(split.ids) || !split.words.length ? null : same ? one : await scoresOf(split.ids, gates);
  lab.tasks.forEach((task, number) => {
    const tags = task.kind === "tag", from = tags ? two : one;
    if (!from) { answers[task.name] = long(tags ? split.ids : whole) || { problem: "no text" }; return; }
    const scores = from[`scores_${number}`];
    if (tags) answers[task.name] = tagged(task, split, scores);
    else if (task.kind === "regress") answers[task.name] = { form: "graded", value: task.low + scores.data[0] * (task.high - task.low) };
    else answers[task.name] = labelled(task, [...scores.data]);
  });
  return answers;
}

function softmax(values) {
  const most = Math.max(...values), powers = values.map((value) => Math.exp(value - most)), all = sum(powers);
  return powers.map((value) => value / all);
}

function labelled(task, scores) {
  const chances = softmax(scores), best = chances.indexOf(Math.max(...chances));
  return { form: "labelled", label: task.labels[best], probabilities: Object.fromEntries(chances.map((chance, i) => [task.labels[i], chance])) };
}

/* A word's scores are the mean of its sub-words', or those of the first, as the output head was trained. */
function tagged(task, split, scores) {
  const width = scores.dims[2], tags = [], probabilities = [];
  split.words.forEach((_, word) => {
    const places = split.of.flatMap((w, i) => (w === word ? [i] : [])), used = words.pool[task.name] === "first" ? places.slice(0, 1) : places;
    const mean = [...Array(width).keys()].map((c) => sum(used.map((i) => scores.data[i * width + c])) / used.length);
    const chances = softmax(mean), best = chances.indexOf(Math.max(...chances));
    tags.push(task.labels[best]);
    probabilities.push(chances[best]);
  });
  return { form: "tagged", words: split.words, tags, probabilities };
}

/* WordPiece as BERT has it. */
const CHINESE = /[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu;
const PUNCTUATION = /[!-/:-@[-`{-~\p{P}]/u;

function normalized(text) {
  let cleaned = text.replace(/[\u0000\ufffd]/g, "").replace(/[\t\n\r]/g, " ").replace(/[\p{Cc}\p{Cf}\p{Cn}\p{Co}]/gu, "").replace(/\p{Zs}/gu, " ");
  if (words.chinese) cleaned = cleaned.replace(CHINESE, " $& ");
  if (words.strip) cleaned = cleaned.normalize("NFD").replace(/\p{Mn}/gu, "");
  return words.lowercase ? cleaned.toLowerCase() : cleaned;
}

function pieces(text) {
  const ids = [];
  for (const part of normalized(text).split(/\s+/u).filter(Boolean)) {
    let word = "";
    for (const letter of part) {
      if (!PUNCTUATION.test(letter)) { word += letter; continue; }
      if (word) ids.push(...wordPieces(word));
      ids.push(...wordPieces(letter));
      word = "";
    }
    if (word) ids.push(...wordPieces(word));
  }
  return ids;
}

function wordPieces(word) {
  const letters = [...word], ids = [], id = (text) => (Object.hasOwn(words.vocab, text) ? words.vocab[text] : undefined);
  if (letters.length > words.longest) return [id(words.unknown)];
  for (let start = 0; start < letters.length;) {
    let end = letters.length, piece;
    for (; end > start; end -= 1) {
      piece = id((start ? words.prefix : "") + letters.slice(start, end).join(""));
      if (piece !== undefined) break;
    }
    if (end === start) return [id(words.unknown)];
    ids.push(piece);
    start = end;
  }
  return ids;
}

/* Special tokens written out in a text are those tokens. */
function within(text) {
  const ids = [];
  for (let rest = text; rest;) {
    const [at, token] = words.special.map((one) => [rest.indexOf(one), one]).filter(([place_]) => place_ >= 0).sort((a, b) => a[0] - b[0] || b[1].length - a[1].length)[0] || [rest.length, ""];
    ids.push(...pieces(rest.slice(0, at)), ...(token ? [words.vocab[token]] : []));
    rest = rest.slice(at + token.length);
  }
  return ids;
}

const encode = (text) => [words.ends[0], ...within(text), words.ends[1]];

function encodeWords(list) {
  const ids = [words.ends[0]], of = [-1];
  list.forEach((word, number) => {
    const own = within(word);
    for (const id of own.length ? own : [words.vocab[words.unknown]]) { ids.push(id); of.push(number); }
  });
  return { ids: [...ids, words.ends[1]], of: [...of, -1], words: list };
}
