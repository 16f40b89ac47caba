// One prompt to two versions: both answers are streamed side by side. What comes is text and nothing else.
(() => {
  "use strict";
  const form = document.getElementById("chat");
  if (!form || form.dataset.ready) return;
  form.dataset.ready = "1";
  const prompt = form.elements.prompt, send = form.querySelector("button.button"), stop = form.querySelector("[data-stop]");
  const chat = form.dataset.chat === "1";
  let running = null;

  const sides = [...form.querySelectorAll("[data-side]")].map((place) => ({
    place, log: place.querySelector(".log"), meta: place.querySelector(".meta"), pick: place.querySelector("[data-version]"), turns: [],
  }));
  const asked = (side, first) => first || (side.pick.value !== "-" && side.pick.value !== "");
  const number = (id) => { const v = document.getElementById(id)?.value; return v === undefined || v === "" ? null : Number(v); };
  const say = (side, className, text) => {
    const p = document.createElement("p");
    p.className = className;
    p.textContent = text;
    side.log.append(p);
    side.log.scrollTop = side.log.scrollHeight;
    return p;
  };
  const time = (ms) => ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;

  // The events of a stream, each as the object that it carries.
  async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trimStart()).join("\n");
        if (data && data !== "[DONE]") yield JSON.parse(data);
      }
    }
  }

  const tell = (side, parts, id) => {
    side.meta.textContent = parts.filter(Boolean).join(" · ");
    if (!id) return;
    const link = document.createElement("a");
    link.href = `/console/requests/${encodeURIComponent(id)}`;
    link.textContent = "the request";
    side.meta.append(parts.length ? " · " : "", link);
  };

  async function answer(side, text, signal) {
    const system = document.getElementById("system")?.value.trim();
    const before = side.turns;
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...before, { role: "user", content: text }];
    const body = { version: side.pick.value, ...(chat ? { messages } : { prompt: text }), max_tokens: number("max_tokens"), temperature: number("temperature") };
    const place = say(side, "answer waiting", "");
    const began = performance.now();
    let first = null, id = "", engine = "", usage = null, why = "";
    const facts = () => [first !== null && `first token after ${time(first)}`, `${time(performance.now() - began)} in all`,
      usage && `${usage.prompt_tokens} + ${usage.completion_tokens} tokens`, engine && `engine ${engine}`, why];
    try {
      const response = await fetch(form.action, { method: "POST", signal, body: JSON.stringify(body),
        headers: { "content-type": "application/json", "x-csrf-token": form.dataset.token, accept: "text/event-stream" } });
      id = response.headers.get("x-request-id") || "";
      engine = response.headers.get("x-florin-engine") || "";
      if (response.redirected) throw new Error("Your session has ended. Sign in again.");
      if (!response.ok) throw new Error(await refusal(response));
      for await (const event of events(response.body)) {
        if (event.error) throw new Error(event.error.message);
        usage = event.usage || usage;
        const choice = event.choices?.[0];
        const piece = choice?.delta?.content ?? choice?.delta?.reasoning_content ?? choice?.text ?? "";
        if (choice?.finish_reason === "length") why = "cut off at the most tokens";
        if (piece) {
          first ??= performance.now() - began;
          const low = side.log.scrollHeight - side.log.scrollTop - side.log.clientHeight < 40;
          place.append(piece);
          if (low) side.log.scrollTop = side.log.scrollHeight;
        }
      }
    } catch (error) {
      if (error.name === "AbortError") why = "stopped";
      else { say(side, "failed", error instanceof TypeError ? "The gateway cannot be reached, or the answer broke off." : error.message); why = "failed"; }
    }
    place.classList.remove("waiting");
    if (place.textContent) side.turns = [...before, { role: "user", content: text }, { role: "assistant", content: place.textContent }];
    else place.remove();
    tell(side, facts(), id);
  }

  // Why a request was refused, of the API's JSON or the console's page.
  async function refusal(response) {
    const text = await response.text();
    try {
      return JSON.parse(text).error.message;
    } catch {
      const page = new DOMParser().parseFromString(text, "text/html");
      return page.querySelector(".problem b")?.textContent || `The gateway answered with status ${response.status}.`;
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = prompt.value.trim();
    if (!text || running) return;
    running = new AbortController();
    const mine = running;
    send.disabled = true;
    stop.hidden = false;
    prompt.value = "";
    await Promise.allSettled(sides.filter((side, n) => asked(side, n === 0)).map((side) => {
      say(side, "asked", text);
      side.meta.textContent = "";
      return answer(side, text, mine.signal);
    }));
    running = null;
    send.disabled = false;
    stop.hidden = true;
    prompt.focus();
  });
  stop.addEventListener("click", () => running?.abort());
  form.querySelector("[data-clear]").addEventListener("click", () => {
    running?.abort();
    for (const side of sides) { side.turns = []; side.log.replaceChildren(); side.meta.textContent = ""; }
    prompt.focus();
  });
  for (const side of sides) side.pick.addEventListener("change", () => { side.turns = []; });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); form.requestSubmit(); }
  });
  // Who leaves the page wants no more of the answer.
  document.addEventListener("htmx:beforeSwap", (event) => { if (event.detail.target === document.body) running?.abort(); }, { once: true });
})();
