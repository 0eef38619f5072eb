/* Who answers: the server that sent this page. A newer request of one kind replaces the older one. */
const client = crypto.getRandomValues(new Uint32Array(3)).join("-");
const pending = {};

function request(name, body) {
  pending[name]?.abort();
  const hangUp = new AbortController();
  pending[name] = hangUp;
  return fetch(name, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ client, ...body }), signal: hangUp.signal });
}

class Unheard extends Error {} /* replaced by a newer request: nobody waits for it */

async function reply(name, body) {
  let response;
  try { response = await request(name, body); } catch (error) {
    if (error.name === "AbortError") throw new Unheard();
    throw new Error("The lab does not answer. Is headwise lab still running?");
  }
  if (response.status === 409) throw new Unheard();
  return response;
}

async function ask(name, body) {
  const response = await reply(name, body);
  const result = await response.json().catch(() => { throw new Unheard(); });
  if (!response.ok) throw new Error(result.error || `the lab answered ${response.status}`);
  return result;
}

/* Results as they come, one line of JSON each. */
async function* stream(name, body) {
  const response = await reply(name, body);
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const result = JSON.parse(line);
        if (result.error) throw result.error.startsWith("replaced by a newer request") ? new Unheard() : new Error(result.error);
        yield result;
      }
    }
  } catch (error) {
    if (error.name === "AbortError") throw new Unheard();
    throw error;
  }
}

const hangUp = (name) => pending[name]?.abort();
const open = async () => (await fetch("about.json")).json();
const ABLE = { why: true, flip: true, attention: true, scores: true, examples: true, export: true, close: true };
