// Streams the answers beside each other. Without this script the same form shows whole answers on the next page.
"use strict";
{
  const form = document.getElementById("play");
  const talk = document.getElementById("talk");
  const told = document.getElementById("told");
  const stop = document.getElementById("stop");
  let running = null;

  if (form) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!running && form.reportValidity()) ask();
    });
    stop.addEventListener("click", () => running && running.abort());
  }
  document.addEventListener("click", copy);
  offerCopying(document);

  async function ask() {
    const prompt = form.elements.prompt.value.trim();
    const columns = ["model_1", "model_2", "model_3"].map((name) => form.elements[name].value);
    if (!prompt) return form.elements.prompt.focus();
    running = new AbortController();
    busy(true);
    const turn = show("turn", talk);
    turn.querySelector(".said").textContent = prompt;
    turn.scrollIntoView({ block: "nearest" });
    const answers = await Promise.all(columns.map((model, column) => (model ? answer(turn, model, column) : "")));
    if (answers.some((text) => text)) {
      const turns = JSON.parse(form.elements.history.value || "[]");
      form.elements.history.value = JSON.stringify([...turns, { user: prompt, answers }]);
      form.elements.prompt.value = "";
    }
    told.textContent = running.signal.aborted ? "Stopped." : "All answers are there.";
    running = null;
    busy(false);
    form.elements.prompt.focus({ preventScroll: true });
  }

  // The text that came, or nothing where it failed.
  async function answer(turn, model, column) {
    const shown = show("answer", turn.querySelector(".columns"));
    const part = (name) => shown.querySelector(`.${name}`);
    const wrong = (text) => {
      const problem = document.createElement("p");
      problem.className = "problem";
      problem.textContent = text;
      part("wrong").replaceChildren(problem);
    };
    shown.querySelector("h3").textContent = model;
    shown.setAttribute("aria-busy", "true");
    const fields = new URLSearchParams(new FormData(form));
    fields.set("column", column);
    let isWell = true;
    try {
      const reply = await fetch(form.dataset.answer, { method: "POST", body: fields, signal: running.signal });
      if (!(reply.headers.get("content-type") || "").startsWith("text/event-stream")) throw new Error(await refusal(reply));
      isWell = false;
      for await (const { name, data } of events(reply.body)) {
        if (name === "end") isWell = !part("wrong").hasChildNodes();
        if (name === "about" || name === "end") part(name).innerHTML = data;
        else if (name === "problem") part("wrong").innerHTML = data;
        else if (data !== "[DONE]") take(JSON.parse(data), part("text"), wrong);
      }
      if (!isWell && !part("wrong").hasChildNodes()) wrong("The connection broke off.");
    } catch (error) {
      isWell = false;
      wrong(error.name === "AbortError" ? "Stopped. What was made until then is billed." : error.message);
    }
    offerCopying(shown);
    shown.removeAttribute("aria-busy");
    return isWell ? part("text").textContent : "";
  }

  function take(chunk, text, wrong) {
    if (chunk.error) return wrong([chunk.error.code, chunk.error.message].filter(Boolean).join(": "));
    for (const choice of chunk.choices || []) text.append((choice.delta && choice.delta.content) || "");
  }

  async function refusal(reply) {
    if (reply.status === 401) return "Your visit has ended; log in again in another tab, and send it once more.";
    if (reply.status === 413) return "This is too long to be sent from here; shorten it, or start over.";
    const isText = (reply.headers.get("content-type") || "").startsWith("text/plain");
    return isText ? await reply.text() : `The gateway answered ${reply.status}.`;
  }

  // Server-sent events as the standard says, but for their ids.
  async function* events(stream) {
    const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = /\r?\n\r?\n/.exec(text)); ) {
        const event = parse(text.slice(0, end.index));
        text = text.slice(end.index + end[0].length);
        if (event.data) yield event;
      }
    }
  }

  function parse(block) {
    const lines = block.split(/\r?\n/);
    const values = (field) => lines.filter((line) => line.startsWith(`${field}:`)).map((line) => line.slice(field.length + 1).replace(/^ /, ""));
    return { name: values("event").at(-1) || "message", data: values("data").join("\n") };
  }

  function show(id, where) {
    where.append(document.getElementById(id).content.cloneNode(true));
    return where.lastElementChild;
  }

  function busy(isBusy) {
    form.querySelector("button[type=submit]").disabled = isBusy;
    stop.hidden = !isBusy;
    if (isBusy) told.textContent = "Waiting for the answers.";
  }

  function offerCopying(where) {
    // Browsers lend their clipboard to secure pages alone.
    if (navigator.clipboard) where.querySelectorAll(".copy").forEach((button) => { button.hidden = false; });
  }

  async function copy(event) {
    const button = event.target.closest && event.target.closest(".copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.closest(".snippet").querySelector("code").textContent);
    told.textContent = "Copied.";
  }
}
